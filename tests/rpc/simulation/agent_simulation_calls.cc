// The calls of a simulation, and what may become of them.
#include "base/error.h"
#include "rpc/detail/peer_state.h"
#include "tests/rpc/simulation/agent_simulation.h"

namespace retort::rpc::simulation {
namespace {

using namespace std::chrono_literals;

// After a cancellation a call has ended: at once, or when a frozen process goes on.
constexpr milliseconds kCancelled{10s};

}  // namespace

struct AgentSimulation::Call {
  std::string peer;
  Method<WorkRequest, WorkReply> method = kWork;
  WorkRequest request;  // without its data
  int64_t bytes = 0;
  CallOptions options;
  std::optional<milliseconds> cancel;  // when

  // Whether nothing but a fault may keep it from its value.
  bool must_succeed() const {
    return !cancel && options.queue_timeout.count() == 0 && options.wait_for_credit &&
           options.timeout.count() > request.takes_ms;
  }
};

AgentSimulation::Call AgentSimulation::new_call(const Process& caller) {
  Scheduler& random = world_.scheduler;
  Call call;
  const auto& others = caller.name().starts_with("client") ? servers_ : clients_;
  call.peer = others[random.pick(others.size())];
  const auto bytes = [&] {
    if (random.pick(3) > 0) return static_cast<int64_t>(random.pick(2000));
    return static_cast<int64_t>(70'000 + random.pick(random.one_of(4) ? 900'000 : 130'000));
  };
  call.bytes = bytes();
  call.request.reply_bytes = random.one_of(4) ? bytes() : 0;
  call.request.takes_ms = random.one_of(2) ? 0 : static_cast<int64_t>(random.pick(30));
  call.options.timeout = milliseconds(call.request.takes_ms + 1) + random.up_to(40);
  if (world_.ordered) return call;

  if (random.one_of(8)) call.options.timeout = 1ms + random.up_to(10);
  if (random.one_of(8)) call.options.queue_timeout = 1ms + random.up_to(100);
  if (random.one_of(10)) call.options.wait_for_credit = false;
  if (random.one_of(5)) call.cancel = random.up_to(60);
  return call;
}

// Its memory is in use until nothing reads it any more.
Future<WorkReply> AgentSimulation::send(Process& caller, const Call& call) {
  const std::string key = caller.host().address() + " to " + call.peer;
  Future<WorkReply> future;
  std::function<void()> count;
  {
    WorkRequest request = call.request;
    request.id = next_call_++;
    World::Memory memory = world_.memory(key, call.bytes);
    request.data = std::move(memory.tensor);
    count = std::move(memory.count);
    future = caller.agent().call(call.peer, call.method, request, call.options);
  }
  // Small calls do not wait for it.
  if (call.bytes > static_cast<int64_t>(rpc::detail::kSmallBytes)) count();
  const World::Use use = world_.use(key);
  const uint64_t most = caller.options().rpc.max_inflight_bytes.bytes;
  if (use.bytes > most && use.tensors > 1)
    world_.fail(std::to_string(use.bytes) + " bytes of large requests are in flight from " + key +
                ", more than " + std::to_string(most));
  return future;
}

void AgentSimulation::check(const Call& call, Future<WorkReply> future) {
  try {
    future.get();
  } catch (const Error& error) {
    check_error(call, error);
  }
}

// What the call asked for, or a fault, must explain it.
void AgentSimulation::check_error(const Call& call, const Error& error) {
  const ErrorCode code = error.code();
  const bool limited = !call.options.wait_for_credit && code == ErrorCode::kResourceExhausted;
  const bool timed = code == ErrorCode::kTimeout &&
                     (call.options.queue_timeout.count() > 0 ||
                      call.options.timeout.count() <= call.request.takes_ms || !calm_);
  const bool cancelled = call.cancel && code == ErrorCode::kCancelled;
  const bool lost = !calm_ && (code == ErrorCode::kPeerLost || code == ErrorCode::kClosed);
  if (!limited && !timed && !cancelled && !lost)
    world_.fail("a call to " + call.peer + " failed: " + error.what());
  if (calm_ && call.must_succeed())
    world_.fail("a call to " + call.peer + " failed without a fault: " + error.what());
}

void AgentSimulation::call_once(Process& caller, Call call) {
  auto future = send(caller, call);
  if (call.cancel) {
    try {
      future.get(Deadline::after(*call.cancel));
      return;
    } catch (const Error&) {
      if (!future.valid()) return;
    }
    future.cancel();
    try {
      future.get(Deadline::after(kCancelled));
    } catch (const Error& error) {
      if (future.valid()) return world_.fail("a call goes on after it was cancelled");
    }
    return;
  }
  check(call, std::move(future));
}

// A call whose answer leads to another, which is made on the loop, where nothing may wait.
// Cancelled while either of the two is under way.
void AgentSimulation::call_in_a_chain(Process& caller, Call first) {
  Call second = new_call(caller);
  second.method = kHold;
  second.bytes = 100;
  second.options = {.timeout = 1h};
  second.request.reply_bytes = 0;
  const auto under_way = std::make_shared<Call>(first);
  auto chain = send(caller, first).then([this, &caller, second, under_way](const WorkReply&) {
    *under_way = second;
    return send(caller, second);
  });

  try {
    chain.get(Deadline::after(world_.scheduler.up_to(100)));
    return;
  } catch (const Error& error) {
    if (!chain.valid()) return check_error(*under_way, error);
  }
  chain.cancel();
  try {
    chain.get(Deadline::after(kCancelled));
  } catch (const Error& error) {
    if (chain.valid()) return world_.fail("a chain of calls goes on after it was cancelled");
    under_way->cancel = 0ms;
    check_error(*under_way, error);
  }
}

// Some calls one by one, some many at a time.
void AgentSimulation::call_again_and_again(const std::shared_ptr<Process>& caller,
                                           int64_t num_calls) {
  Scheduler& random = world_.scheduler;
  for (int64_t i = 0; i < num_calls && world_.failure().empty(); ++i) {
    if (random.one_of(3)) random.sleep(random.up_to(150));
    if (!world_.ordered && random.one_of(6)) {
      call_in_a_chain(*caller, new_call(*caller));
    } else if (random.one_of(3)) {
      std::vector<std::pair<Call, Future<WorkReply>>> burst;
      for (uint64_t n = 1 + random.pick(8); n > 0; --n) {
        Call call = new_call(*caller);
        call.cancel.reset();
        auto future = send(*caller, call);
        burst.emplace_back(std::move(call), std::move(future));
      }
      for (auto& [call, future] : burst)
        check(call, std::move(future));
    } else {
      call_once(*caller, new_call(*caller));
    }
  }
  --num_callers_;
}

// A small call that is open for as long as others are made.
void AgentSimulation::hold_one(const std::shared_ptr<Process>& caller, const std::string& peer) {
  Call call{.peer = peer, .method = kHold, .bytes = 10, .options = {.timeout = 1h}};
  auto future = send(*caller, call);
  while (!callers_done_ && !future.ready())
    world_.scheduler.sleep(20ms);
  future.cancel();
  try {
    future.get(Deadline::after(kCancelled));
  } catch (const Error&) {
    if (future.valid()) world_.fail("a held call goes on after it was cancelled");
  }
}

}  // namespace retort::rpc::simulation
