// The program of the fault tests: the tests themselves, or one of the peers that they spawn.
#include <gtest/gtest.h>

#include "base/end_process.h"
#include "base/log.h"
#include "tests/rpc/echo.h"
#include "tests/support/process.h"

namespace retort::rpc::testing {
namespace {

// Serves echo as teacher/0 until the parent closes the channel; prints its address, then a line for
// every long call.
int run_server(const std::string& stream) {
  HandlerThread handlers;
  RpcOptions options = rpc_options(stream);
  options.heartbeat_interval = Duration(200);
  Agent agent(agent_options("teacher/0", options));
  agent.serve(kEcho, handlers.queue, [](EchoRequest request, const CallContext& context) {
    if (request.sleep_ms >= 60000) test::say("echo runs");
    const auto until = Deadline::after(std::chrono::milliseconds(request.sleep_ms));
    while (!until.expired() && !context.cancelled->load())
      std::this_thread::sleep_for(1ms);
    return EchoReply{request.text, context.peer, request.tensors};
  });
  test::say(agent.address());
  while (test::hear()) {
  }
  agent.close();
  agent.join();
  return 0;
}

// Calls teacher/1 with a request that takes a minute.
int run_caller(const std::string& stream, const std::string& address) {
  Agent agent(agent_options("caller/0", rpc_options(stream)));
  agent.connect("teacher/1", address, soon());
  auto future = agent.call("teacher/1", kEcho, {.sleep_ms = 60000});
  test::say("calling");
  future.get();
  return 1;
}

}  // namespace
}  // namespace retort::rpc::testing

int main(int argc, char** argv) {
  using namespace retort;
  if (const auto role = test::spawned_role()) {
    const auto args = test::spawned_args();
    set_log_identity(*role);
    end_process(*role == "server" ? rpc::testing::run_server(args.at(0))
                                  : rpc::testing::run_caller(args.at(0), args.at(1)));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
