// What agents count of their calls by method: where the time went, bytes, waits, errors.
#include "rpc/method_stats.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "rpc/agent.h"
#include "rpc/detail/method_counters.h"
#include "tests/rpc/echo.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::testing {
namespace {

using detail::EndedCall;
using detail::MethodCounters;

constexpr double kLow = 0.91;  // a histogram's error

class MethodStatsTest : public ::testing::Test {
 protected:
  explicit MethodStatsTest(RpcOptions server_options = {}, RpcOptions client_options = {})
      : server(agent_options("teacher/0", server_options)),
        client(agent_options("student/0", client_options)) {
    serve_echo(server, handlers.queue);
    client.connect("teacher/0", server.address(), soon());
  }
  Future<EchoReply> echo(EchoRequest request, CallOptions options = {}) {
    return client.call("teacher/0", kEcho, request, options);
  }
  static MethodStats of(const Agent& agent, std::string_view method, bool served) {
    MethodStats stats;
    for (const MethodTraffic& traffic : agent.method_stats())
      if (traffic.method == method && traffic.served == served) stats += traffic.stats;
    return stats;
  }
  MethodStats called(std::string_view method) const { return of(client, method, false); }
  MethodStats served(std::string_view method) const { return of(server, method, true); }

  HandlerThread handlers;
  Agent server, client;
};

TEST_F(MethodStatsTest, SaysWhereTheTimeWent) {
  EXPECT_TRUE(client.method_stats().empty());
  const auto begin = std::chrono::steady_clock::now();
  handlers.paused = true;
  auto first = echo({.text = "first", .sleep_ms = 30});
  ASSERT_TRUE(test::wait_until([&] { return handlers.taken == 1; }, 30s, 1ms));
  std::this_thread::sleep_for(50ms);
  handlers.paused = false;
  first.get(soon());
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;

  const MethodStats stats = called("test.echo");
  EXPECT_EQ(stats.calls, 1u);
  EXPECT_EQ(stats.errors, 0u);
  EXPECT_GE(stats.queue.quantile(1), kLow * 0.050);
  EXPECT_GE(stats.handler.quantile(1), kLow * 0.030);
  EXPECT_EQ(stats.wire.count(), 1u);
  EXPECT_LE(stats.wire.quantile(1), (whole.count() - 0.080) / kLow);
  EXPECT_EQ(client.method_stats().at(0).peer, "teacher/0");
}

TEST_F(MethodStatsTest, BothEndsCountTheSame) {
  for (int i = 0; i < 3; ++i)
    echo({.reply_bytes = 100'000, .tensors = {at::zeros({1000})}}).get(soon());
  ASSERT_TRUE(test::wait_until([&] { return served("test.echo").calls == 3; }, 30s, 1ms));
  const MethodStats here = called("test.echo"), there = served("test.echo");
  EXPECT_EQ(here.calls, 3u);
  EXPECT_GT(here.bytes_sent, 3u * 4000);
  EXPECT_GT(here.bytes_received, 3u * 104'000);
  EXPECT_EQ(there.bytes_received, here.bytes_sent);
  EXPECT_EQ(there.bytes_sent, here.bytes_received);
  EXPECT_EQ(there.handler.count(), 3u);
  EXPECT_EQ(there.handler.quantile(0.5), here.handler.quantile(0.5));
  EXPECT_EQ(there.wire.count(), 0u) << "one end knows it";
}

TEST_F(MethodStatsTest, AnAnswerThatComesLaterIsTheHandlersTime) {
  static constexpr Method<EchoRequest, EchoReply> kLater{"test.later"};
  auto promise = std::make_shared<Promise<EchoReply>>();
  std::atomic<bool> runs{false};
  server.serve(kLater, handlers.queue, [&](EchoRequest, const CallContext&) {
    runs = true;
    return promise->future();
  });
  auto later = client.call("teacher/0", kLater, {});
  ASSERT_TRUE(test::wait_until([&] { return runs.load(); }, 30s, 1ms));
  std::this_thread::sleep_for(50ms);
  promise->set_value({});
  later.get(soon());
  EXPECT_GE(called("test.later").handler.quantile(1), kLow * 0.050);
}

TEST_F(MethodStatsTest, ErrorsAreCountedAndCancellationsAreNone) {
  auto failed = client.call("teacher/0", kFail, {static_cast<int32_t>(ErrorCode::kMismatch)});
  EXPECT_EQ(code_of(failed), ErrorCode::kMismatch);
  EXPECT_EQ(called("test.fail").errors, 1u);
  EXPECT_EQ(called("test.fail").queue.count(), 0u) << "times are those of answered calls";

  auto unknown = client.call("teacher/0", kNobodyServes, {});
  EXPECT_EQ(code_of(unknown), ErrorCode::kUnavailable);
  EXPECT_EQ(called("test.nobody").errors, 1u);
  EXPECT_EQ(served("test.nobody").calls, 0u) << "names that peers make up are not kept";

  handlers.paused = true;
  auto late = echo({}, {.queue_timeout = 50ms});
  EXPECT_EQ(code_of(late), ErrorCode::kTimeout);
  auto cancelled = echo({});
  cancelled.cancel();
  EXPECT_EQ(code_of(cancelled), ErrorCode::kCancelled);
  EXPECT_EQ(called("test.echo").calls, 2u);
  EXPECT_EQ(called("test.echo").errors, 1u);
}

RpcOptions small_window() {
  RpcOptions options;
  options.max_inflight_bytes = {1 << 20};
  return options;
}

class SmallWindowTest : public MethodStatsTest {
 protected:
  SmallWindowTest() : MethodStatsTest({}, small_window()) {}
};

TEST_F(SmallWindowTest, WaitsForCreditAreCounted) {
  const std::vector<at::Tensor> large{at::zeros({600 << 10}, at::kByte)};
  handlers.paused = true;
  auto first = echo({.tensors = large});
  EXPECT_EQ(called("test.echo").credit_waits, 0u);
  auto refused = echo({.tensors = large}, {.wait_for_credit = false});
  EXPECT_EQ(code_of(refused), ErrorCode::kResourceExhausted);
  auto waited = echo({.tensors = large}, {.queue_timeout = 50ms});
  EXPECT_EQ(code_of(waited), ErrorCode::kTimeout);
  EXPECT_EQ(called("test.echo").errors, 2u);
  EXPECT_EQ(called("test.echo").credit_waits, 1u);
  EXPECT_GT(called("test.echo").credit_wait_seconds, 0);

  std::thread unpause([&] {
    std::this_thread::sleep_for(500ms);
    handlers.paused = false;
  });
  echo({.tensors = large}).get(soon());
  unpause.join();
  EXPECT_EQ(called("test.echo").credit_waits, 2u);
  EXPECT_GE(called("test.echo").credit_wait_seconds, 0.3);
  EXPECT_LT(called("test.echo").wire.quantile(0), 0.500 / kLow) << "a wait is not the wire's";
}

RpcOptions small_budget() {
  RpcOptions options;
  options.receive_budget = {8 << 20};
  return options;
}

class SmallBudgetTest : public MethodStatsTest {
 protected:
  SmallBudgetTest() : MethodStatsTest(small_budget()) {}
};

TEST_F(SmallBudgetTest, WaitsForRoomAtTheReceiverAreCounted) {
  handlers.paused = true;
  std::vector<Future<EchoReply>> futures;
  for (int i = 0; i < 40; ++i)
    futures.push_back(echo({.tensors = {at::zeros({900 << 10}, at::kByte)}}));
  std::this_thread::sleep_for(50ms);
  handlers.paused = false;
  for (auto& future : futures)
    future.get(soon());
  EXPECT_EQ(called("test.echo").calls, 40u);
  EXPECT_GE(called("test.echo").credit_waits, 20u);
  EXPECT_GE(called("test.echo").credit_wait_seconds, 20 * 0.045);
}

TEST(MethodCountersTest, APeerCannotSayThatMoreTimeWentThanDid) {
  MethodCounters counters;
  counters.count_called("m", {.how = EndedCall::How::kAnswered,
                              .served = {.queue = 10ms, .handler = 1h},
                              .round_trip = 20ms});
  std::vector<MethodTraffic> traffic;
  counters.append_to(traffic, "p");
  ASSERT_EQ(traffic.size(), 1u);
  EXPECT_EQ(traffic[0].stats.wire.count(), 1u);
  EXPECT_EQ(traffic[0].stats.wire.quantile(1), 0);
}

TEST(MethodStatsSum, AddsAndSubtractsEveryNumber) {
  MethodStats one{.calls = 1,
                  .errors = 2,
                  .bytes_sent = 3,
                  .bytes_received = 4,
                  .credit_waits = 5,
                  .credit_wait_seconds = 6};
  one.queue.add(1ms);
  one.handler.add(1ms);
  one.wire.add(1ms);
  MethodStats two = one;
  two += one;
  const MethodStats back = two.since(one);
  EXPECT_EQ(to_bytes(back), to_bytes(one));
  EXPECT_NE(to_bytes(two), to_bytes(one));
  EXPECT_EQ(two.calls + two.errors + two.bytes_sent + two.bytes_received + two.credit_waits, 30u);
  EXPECT_EQ(two.credit_wait_seconds, 12);
  EXPECT_EQ(two.queue.count() + two.handler.count() + two.wire.count(), 6u);
}

}  // namespace
}  // namespace retort::rpc::testing
