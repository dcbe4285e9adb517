// Time, limits and endings: deadlines, cancellation, credit, full queues, close.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <mutex>

#include "rpc/agent.h"
#include "tests/rpc/echo.h"

namespace retort::rpc::testing {
namespace {

struct Pair {
  explicit Pair(RpcOptions server_options = {}, RpcOptions client_options = {},
                size_t capacity = 256)
      : handlers(capacity),
        server(agent_options("teacher/0", server_options)),
        client(agent_options("student/0", client_options)) {
    serve_echo(server, handlers.queue, ran);
    client.connect("teacher/0", server.address(), soon());
  }
  Future<EchoReply> echo(EchoRequest request, CallOptions options = {}) {
    return client.call("teacher/0", kEcho, request, options);
  }
  std::shared_ptr<std::atomic<int>> ran = std::make_shared<std::atomic<int>>(0);
  HandlerThread handlers;
  Agent server, client;
};

TEST(Deadlines, ACallThatWaitedTooLongFailsAndItsQueuedHandlerNeverRuns) {
  Pair pair;
  pair.handlers.paused = true;
  auto late = pair.echo({.text = "late"}, {.queue_timeout = 2s});  // long enough to be sent
  EXPECT_EQ(code_of(late), ErrorCode::kTimeout);
  ASSERT_TRUE(eventually([&] { return pair.handlers.taken == 1; }));
  std::this_thread::sleep_for(2100ms);  // so that it has expired by the server's clock too
  pair.handlers.paused = false;
  // served after the expired one was skipped
  EXPECT_EQ(pair.echo({.text = "next"}).get().text, "next");
  EXPECT_EQ(*pair.ran, 1);
}

TEST(Deadlines, TheDefaultTimeoutIsTheOptions) {
  RpcOptions options;
  options.timeout = Duration(50);
  Pair pair({}, options);
  auto late = pair.echo({.sleep_ms = 20000});
  EXPECT_EQ(code_of(late), ErrorCode::kTimeout);
}

// A healthy peer may be slow: what stands before a call does not count.
TEST(Deadlines, TheTimeoutBeginsWithTheHandler) {
  Pair pair;
  pair.handlers.paused = true;
  auto quick = pair.echo({.text = "quick"}, {.timeout = 1s});
  auto slow = pair.echo({.text = "slow", .sleep_ms = 20000}, {.timeout = 50ms});
  std::this_thread::sleep_for(1200ms);
  EXPECT_FALSE(quick.ready());
  pair.handlers.paused = false;
  EXPECT_EQ(quick.get(soon()).text, "quick");
  EXPECT_EQ(code_of(slow), ErrorCode::kTimeout);
}

TEST(Deadlines, TheDefaultQueueTimeoutIsTheOptions) {
  RpcOptions options;
  options.queue_timeout = Duration(50);
  Pair pair({}, options);
  pair.handlers.paused = true;
  auto late = pair.echo({});
  EXPECT_EQ(code_of(late), ErrorCode::kTimeout);
}

// Whoever answers later says when the work began.
TEST(Deadlines, OfADeferredReplyBeginWhenTheWorkDoes) {
  Pair pair;
  constexpr Method<Empty, Empty> kLater{"test.later"};
  Promise<Empty> promise;
  std::shared_ptr<CallClock> clock;
  std::atomic<bool> called{false};
  pair.server.serve(kLater, pair.handlers.queue, [&](Empty, const CallContext& context) {
    clock = context.clock;
    clock->wait();
    called = true;
    return promise.future();
  });
  auto reply = pair.client.call("teacher/0", kLater, {}, {.timeout = 50ms});
  ASSERT_TRUE(eventually([&] { return called.load(); }));
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(reply.ready());
  clock->begin();
  EXPECT_EQ(code_of(reply), ErrorCode::kTimeout);
}

TEST(Deadlines, ManyDeadlinesFireInTheirOwnTime) {
  Pair pair;
  pair.handlers.paused = true;
  std::vector<Future<EchoReply>> futures;
  for (int i = 0; i < 20; ++i)
    futures.push_back(
        pair.echo({}, {.queue_timeout = std::chrono::milliseconds(i % 2 ? 30 : 60000)}));
  for (int i = 1; i < 20; i += 2)
    EXPECT_EQ(code_of(futures[i]), ErrorCode::kTimeout);
  pair.handlers.paused = false;
  for (int i = 0; i < 20; i += 2)
    EXPECT_NO_THROW(futures[i].get());
}

TEST(DeferredReply, AnswersLaterWhileOtherCallsRun) {
  Pair pair;
  struct Held {
    Promise<EchoReply> promise;
    std::atomic<bool> taken{false};
  };
  auto held = std::make_shared<Held>();
  static constexpr Method<EchoRequest, EchoReply> kLater{"test.later"};
  pair.server.serve(kLater, pair.handlers.queue,
                    [held](EchoRequest request, const CallContext&) -> Future<EchoReply> {
                      if (request.text == "throw") throw Error(ErrorCode::kMismatch, "at once");
                      if (request.text == "drop") return Promise<EchoReply>().future();
                      auto future = held->promise.future();
                      held->taken = true;
                      return future;
                    });

  // Another call is answered on the same thread before the reply is there.
  auto later = pair.client.call("teacher/0", kLater, {.text = "wait"}, {});
  EXPECT_EQ(pair.echo({.text = "meanwhile"}, {}).get().text, "meanwhile");
  EXPECT_TRUE(held->taken);
  EXPECT_FALSE(later.ready());
  held->promise.set_value({.text = "late", .tensors = {at::ones({3})}});
  const EchoReply reply = later.get(soon());
  EXPECT_EQ(reply.text, "late");
  EXPECT_EQ(reply.tensors.at(0).numel(), 3);

  // Handlers that end without a reply.
  auto thrown = pair.client.call("teacher/0", kLater, {.text = "throw"}, {});
  EXPECT_EQ(code_of(thrown), ErrorCode::kMismatch);
  auto dropped = pair.client.call("teacher/0", kLater, {.text = "drop"}, {});
  EXPECT_EQ(code_of(dropped), ErrorCode::kClosed);
}

TEST(Cancellation, AQueuedCallDoesNotRunAndARunningOneIsTold) {
  Pair pair;
  auto running = pair.echo({.sleep_ms = 60000});
  ASSERT_TRUE(eventually([&] { return *pair.ran == 1; }));
  auto queued = pair.echo({.text = "queued"});
  queued.cancel();
  EXPECT_EQ(code_of(queued), ErrorCode::kCancelled);
  running.cancel();
  EXPECT_EQ(code_of(running), ErrorCode::kCancelled);
  // Only a handler that saw its flag gets this far within the deadline of code_of().
  EXPECT_EQ(pair.echo({.text = "next"}).get(soon()).text, "next");
  EXPECT_EQ(*pair.ran, 2);
}

TEST(Credit, AFullWindowFailsOrWaitsAsAsked) {
  RpcOptions options;
  options.max_inflight_bytes = {1 << 20};
  Pair pair({}, options);
  pair.handlers.paused = true;
  const std::vector<at::Tensor> large{at::zeros({600 << 10}, at::kByte)};
  auto first = pair.echo({.tensors = large});
  auto refused = pair.echo({.tensors = large}, {.wait_for_credit = false});
  EXPECT_EQ(code_of(refused), ErrorCode::kResourceExhausted);
  auto waited = pair.echo({.tensors = large}, {.queue_timeout = 50ms});
  EXPECT_EQ(code_of(waited), ErrorCode::kTimeout);
  EXPECT_GT(pair.client.stats("teacher/0").inflight_bytes, 600u << 10);

  // The third call returns when the first one's credit is back; the first one's future may complete
  // a moment later.
  std::thread unpause([&] { pair.handlers.paused = false; });
  auto third = pair.echo({.tensors = large});
  EXPECT_NO_THROW(first.get(Deadline::after(std::chrono::seconds(5))));
  EXPECT_NO_THROW(third.get());
  unpause.join();
  EXPECT_TRUE(eventually([&] { return pair.client.stats("teacher/0").inflight_bytes == 0; }));
}

class CallCredit : public ::testing::TestWithParam<bool> {};

// The lower number of both ends holds.
TEST_P(CallCredit, BoundsTheCallsThatAreNotDone) {
  RpcOptions two, many;
  two.max_inflight_calls = 2;
  Pair pair(GetParam() ? two : many, GetParam() ? many : two);
  pair.handlers.paused = true;
  auto first = pair.echo({}), second = pair.echo({});
  auto refused = pair.echo({}, {.wait_for_credit = false});
  EXPECT_EQ(code_of(refused), ErrorCode::kResourceExhausted);
  std::thread unpause([&] {
    std::this_thread::sleep_for(20ms);
    pair.handlers.paused = false;
  });
  auto third = pair.echo({.text = "third"});
  EXPECT_EQ(third.get(soon()).text, "third");
  EXPECT_NO_THROW(first.get(soon()));
  EXPECT_NO_THROW(second.get(soon()));
  unpause.join();
}
INSTANTIATE_TEST_SUITE_P(LimitOf, CallCredit, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "server" : "client"; });

// Neither a server that does not take what it gets nor a client that asks for more than it can hold
// has more on its way than its budget and one message.
TEST(Credit, TheReceiverBoundsWhatIsOnItsWay) {
  RpcOptions options;
  options.receive_budget = {8 << 20};
  Pair pair(options, options);
  pair.handlers.paused = true;
  constexpr int64_t kMessageBytes = 900 << 10;
  const std::vector<at::Tensor> large{at::zeros({kMessageBytes}, at::kByte)};
  std::vector<Future<EchoReply>> futures;
  for (int i = 0; i < 40; ++i)
    futures.push_back(pair.echo({.reply_bytes = 3 << 20, .tensors = large}));
  ASSERT_TRUE(
      eventually([&] { return pair.server.stats("student/0").bytes_received > kMessageBytes; }));
  std::this_thread::sleep_for(50ms);
  EXPECT_LT(pair.server.stats("student/0").bytes_received, (8 << 20) + 2 * kMessageBytes);

  pair.handlers.paused = false;
  for (auto& future : futures)
    EXPECT_EQ(future.get(soon()).tensors.size(), 2u);
  EXPECT_TRUE(eventually([&] { return pair.client.stats("teacher/0").inflight_bytes == 0; }));
}

// A message that no window holds goes alone, until nothing of the one before is kept.
TEST(Credit, TheQueuedCallsOfALostPeerHoldNobodyUp) {
  RpcOptions options;
  options.receive_budget = {8 << 20};
  Pair pair(options, options);
  pair.handlers.paused = true;
  const std::vector<at::Tensor> large{at::zeros({4 << 20}, at::kByte)};
  const auto received = [&] { return pair.server.stats("student/0").bytes_received; };
  auto queued = pair.echo({.tensors = large});
  ASSERT_TRUE(eventually([&] { return received() > (4u << 20); }));

  // Its successor ends the session of the one before; nobody takes that one's job.
  Agent again(agent_options("student/0", options));
  again.connect("teacher/0", pair.server.address(), soon());
  EXPECT_EQ(code_of(queued), ErrorCode::kPeerLost);
  auto next = again.call("teacher/0", kEcho, {.tensors = large});
  EXPECT_TRUE(eventually([&] { return received() > (8u << 20); }));

  pair.handlers.paused = false;
  EXPECT_EQ(next.get(soon()).tensors.size(), 1u);
  EXPECT_EQ(*pair.ran, 1) << "the lost one's handler never ran";
}

TEST(Limits, TooLargeRequestsAndRepliesFailAloneAndTheConnectionLives) {
  RpcOptions small;
  small.max_message_bytes = {1 << 20};
  Pair pair(small, {});
  // the server's limit, known from the handshake
  auto request = pair.echo({.tensors = {at::zeros({2 << 20}, at::kByte)}});
  EXPECT_EQ(code_of(request), ErrorCode::kResourceExhausted);
  auto reply = pair.echo({.reply_bytes = 2 << 20});
  EXPECT_EQ(code_of(reply), ErrorCode::kResourceExhausted);
  EXPECT_EQ(pair.echo({.text = "alive"}).get().text, "alive");
}

TEST(Limits, DevicesWithoutAMapAreRefused) {
  Pair pair;
  auto future = pair.echo({.tensors = {at::empty({3}, at::kMeta)}});
  EXPECT_EQ(code_of(future), ErrorCode::kInvalidArgument);
}

TEST(Limits, AFullHandlerQueueAnswersResourceExhausted) {
  Pair pair({}, {}, 1);
  pair.handlers.paused = true;
  std::vector<Future<EchoReply>> futures;
  for (int i = 0; i < 8; ++i)
    futures.push_back(pair.echo({}));

  // One is held by the paused thread, one is queued; at least six had no place.
  ASSERT_TRUE(eventually([&] {
    int ready = 0;
    for (auto& future : futures)
      ready += future.ready();
    return ready >= 6;
  }));
  pair.handlers.paused = false;

  int refused = 0;
  for (auto& future : futures) {
    try {
      future.get(soon());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      ++refused;
    }
  }
  EXPECT_GE(refused, 6);
  EXPECT_EQ(*pair.ran, 8 - refused);
}

TEST(Close, EveryCallInFlightCompletesOnceAndPeersHear) {
  std::atomic<bool> runs{false}, closed{false};
  Pair pair;
  std::mutex mutex;
  std::vector<std::string> lost;
  pair.client.on_peer_lost([&](const std::string& peer, const std::string&) {
    std::lock_guard lock(mutex);
    lost.push_back(peer);
  });

  // One call runs and ten are queued when the server closes.
  constexpr Method<EchoRequest, EchoReply> kHeld{"test.held"};
  pair.server.serve(kHeld, pair.handlers.queue, [&](EchoRequest request, const CallContext&) {
    runs = true;
    EXPECT_TRUE(eventually([&] { return closed.load(); }));
    return EchoReply{.text = request.text};
  });
  auto running = pair.client.call("teacher/0", kHeld, {.text = "running"});
  ASSERT_TRUE(eventually([&] { return runs.load(); }));
  std::vector<Future<EchoReply>> queued;
  for (int i = 0; i < 10; ++i)
    queued.push_back(pair.echo({.text = "queued"}));
  pair.server.close();
  // The queued ones are refused while the first still runs, whose thread would take them next.
  for (auto& future : queued)
    EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  closed = true;
  pair.server.close();
  pair.server.join();
  EXPECT_EQ(running.get(soon()).text, "running") << "what runs at close() is still answered";

  // The client learns once that the peer is lost.
  auto after = pair.echo({});
  EXPECT_EQ(code_of(after), ErrorCode::kPeerLost);
  ASSERT_TRUE(eventually([&] { return pair.client.peers().empty(); }));
  ASSERT_TRUE(eventually([&] {
    std::lock_guard lock(mutex);
    return !lost.empty();
  }));
  pair.client.join();
  EXPECT_EQ(lost, std::vector<std::string>{"teacher/0"});
}

TEST(Close, TheCallersOwnCloseEndsItsCallsWithClosed) {
  Pair pair;
  pair.handlers.paused = true;
  auto future = pair.echo({});
  const auto start = std::chrono::steady_clock::now();
  pair.client.close();
  pair.client.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  EXPECT_EQ(code_of(future), ErrorCode::kClosed);
  auto late = pair.echo({});
  EXPECT_EQ(code_of(late), ErrorCode::kClosed);
  EXPECT_EQ(code_of([&] { pair.client.connect("teacher/0", pair.server.address(), soon()); }),
            ErrorCode::kClosed);
}

TEST(Close, TheLastReplyArrivesThoughTheServerClosesAtOnce) {
  for (int round = 0; round < 20; ++round) {
    Pair pair;
    auto large = pair.echo({.text = "bye", .reply_bytes = 4 << 20});
    ASSERT_TRUE(eventually([&] { return *pair.ran == 1; }));
    pair.server.join();
    EXPECT_EQ(large.get(soon()).tensors.size(), 1u);
  }
}

TEST(Close, UnderFireFromManyThreads) {
  for (int round = 0; round < 5; ++round) {
    Pair pair;
    std::atomic<bool> stop{false};
    std::atomic<int> completed{0};
    std::atomic<int> issued{0};

    // Three threads call as fast as they can.
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        while (!stop) {
          ++issued;
          auto future = pair.echo({.text = "x", .tensors = {at::zeros({2000})}});
          try {
            future.get(soon());
          } catch (const Error& error) {
            EXPECT_TRUE(error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kClosed)
                << error.what();
          }
          ++completed;
        }
      });

    // One side closes in the middle of it.
    ASSERT_TRUE(eventually([&] { return completed > 50; }));
    if (round % 2)
      pair.server.close();
    else
      pair.client.close();
    std::this_thread::sleep_for(10ms);
    stop = true;
    for (auto& thread : threads)
      thread.join();
    EXPECT_EQ(completed, issued);
  }
}

TEST(Close, AQueueThatDiesAnswersItsCalls) {
  auto queue = std::make_shared<HandlerQueue>(16);
  Agent server(agent_options("teacher/0")), client(agent_options("student/0"));
  server.serve(kEcho, queue, [](EchoRequest, const CallContext&) { return EchoReply{}; });
  client.connect("teacher/0", server.address(), soon());
  auto first = client.call("teacher/0", kEcho, {});
  ASSERT_TRUE(eventually([&] { return queue->size() == 1; }));
  queue->close();
  auto second = client.call("teacher/0", kEcho, {});
  EXPECT_EQ(code_of(second), ErrorCode::kPeerLost);
  queue->pop(soon());  // taken and thrown away
  EXPECT_EQ(code_of(first), ErrorCode::kPeerLost);
}

// A call that stands in the queue must not keep the queue, or neither is ever freed.
TEST(Close, ACallThatNobodyTookGoesWithItsQueue) {
  auto queue = std::make_shared<HandlerQueue>(1);
  const std::weak_ptr<HandlerQueue> left = queue;
  {
    Agent client(agent_options("student/0"));
    Agent server(agent_options("teacher/0"));
    serve_echo(server, queue, std::make_shared<std::atomic<int>>(0));
    client.connect("teacher/0", server.address(), soon());
    const auto call = client.call("teacher/0", kEcho, EchoRequest{.text = "never"}, {});
    ASSERT_TRUE(eventually([&] { return queue->size() == 1; }));
  }

  queue.reset();
  EXPECT_TRUE(left.expired());
}

}  // namespace
}  // namespace retort::rpc::testing
