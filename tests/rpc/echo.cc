#include "tests/rpc/echo.h"

#include <ATen/ops/zeros.h>

namespace retort::rpc::testing {

void serve_echo(Agent& agent, std::shared_ptr<HandlerQueue> queue,
                std::shared_ptr<std::atomic<int>> ran) {
  agent.serve(kEcho, queue, [ran](EchoRequest request, const CallContext& context) {
    if (ran) ++*ran;
    EchoReply reply{request.text, context.peer, request.tensors};
    for (const auto& tensor : request.tensors)
      reply.inference = reply.inference || (tensor.defined() && tensor.is_inference());
    const auto until = Deadline::after(std::chrono::milliseconds(request.sleep_ms));
    while (!until.expired() && !reply.cancelled) {
      std::this_thread::sleep_for(1ms);
      reply.cancelled = context.cancelled->load();
    }
    if (request.reply_bytes > 0)
      reply.tensors.push_back(at::zeros({request.reply_bytes}, at::kByte));
    return reply;
  });
  agent.serve(kFail, queue, [](const FailRequest& request, const CallContext&) -> Empty {
    if (request.kind >= 100) throw std::runtime_error("untyped");
    throw Error(static_cast<ErrorCode>(request.kind), "from the handler")
        .with("kind", request.kind);
  });
}

}  // namespace retort::rpc::testing
