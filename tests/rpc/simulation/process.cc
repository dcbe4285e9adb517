#include "tests/rpc/simulation/process.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "rpc/detail/peer_state.h"

namespace retort::rpc::simulation {
namespace {

using namespace std::chrono_literals;

bool is_large(const WorkRequest& request) {
  return request.data.nbytes() > rpc::detail::kSmallBytes;
}

Agent::Options agent_options(const Process::Options& options, std::shared_ptr<Host> host) {
  return {.name = options.name,
          .secret = "the secret of a simulation",
          .rpc = options.rpc,
          .restart = options.restart,
          .network = std::move(host)};
}

}  // namespace

Process::Process(World& world, Options options)
    : world_(world),
      options_(std::move(options)),
      host_(world.network.add_host(options_.name)),
      queue_(std::make_shared<HandlerQueue>(options_.queue)),
      agent_(std::make_unique<Agent>(agent_options(options_, host_))) {
  serve();
  links_ = std::make_unique<PeerLinks>(
      *agent_,
      PeerLinks::Options{.find = [this](const std::string& peer,
                                        Deadline deadline) { return find(peer, deadline); },
                         .attempt = 2s,
                         // The pause is find()'s, which the seed decides.
                         .first_pause = 0ms,
                         .longest_pause = 0ms});
  world_.directory[options_.name] = host_->address();
  world_.scheduler.spawn([this] { run_handlers(); }, host_.get());
}

// The look-up takes its time.
std::string Process::find(const std::string& peer, Deadline deadline) {
  while (!deadline.expired()) {
    world_.scheduler.sleep(1ms + world_.scheduler.up_to(40));
    const auto found = world_.directory.find(peer);
    if (found != world_.directory.end()) return found->second;
  }
  throw Error(ErrorCode::kUnavailable, "nobody knows " + peer);
}

void Process::serve() {
  agent_->serve(kWork, queue_, [this](WorkRequest request, const CallContext& caller) {
    world_.handler_begins(caller.peer + " to " + name(), request.id, is_large(request));
    if (request.takes_ms > 0) world_.scheduler.sleep(milliseconds(request.takes_ms));
    return WorkReply{request.id, at::empty({request.reply_bytes}, at::kByte)};
  });
  agent_->serve(kHold, queue_, [this](WorkRequest request, const CallContext& caller) {
    world_.handler_begins(caller.peer + " to " + name(), request.id, is_large(request));
    Promise<WorkReply> reply;
    auto future = reply.future();
    held_.push_back({std::move(reply), caller.cancelled});
    return future;
  });
}

void Process::run_handlers() {
  while (!queue_->closed() || queue_->size() > 0) {
    if (auto job = queue_->pop(Deadline::after(held_.empty() ? milliseconds(1h) : 10ms))) (*job)();
    for (auto held = held_.begin(); held != held_.end();) {
      if (!held->cancelled->load() && !stopping_) {
        ++held;
        continue;
      }
      held->reply.set_error(
          std::make_exception_ptr(Error(ErrorCode::kCancelled, "nobody waits for it")));
      held = held_.erase(held);
    }
  }
  handlers_done_ = true;
}

void Process::stop() {
  if (stopped_) return;
  stopping_ = true;
  links_.reset();
  agent_->join();
  queue_->close();
  while (!handlers_done_)
    world_.scheduler.sleep(1ms);
  stopped_ = true;
}

}  // namespace retort::rpc::simulation
