// The rules of the store's server, without sockets and without a clock.
#include "rpc/rendezvous/store_state.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace retort::rpc::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// Two clients, 1 and 2, and a clock that stands still until it is told to go on.
class StoreRules : public ::testing::Test {
 protected:
  void ask(uint64_t client, StoreRequest request) { state.handle(client, std::move(request), now); }
  uint64_t wait(uint64_t client, std::vector<std::string> keys, int64_t timeout_ms = 1000) {
    StoreRequest request{.id = ++last_id, .op = StoreOp::kWait};
    request.keys = std::move(keys);
    request.timeout_ms = timeout_ms;
    ask(client, std::move(request));
    return last_id;
  }
  StoreReply set(const std::string& key, const std::string& value = "value") {
    return reply_to({.id = ++last_id, .op = StoreOp::kSet, .keys = {key}, .values = {value}});
  }
  StoreReply add(const std::string& key, int64_t number) {
    return reply_to({.id = ++last_id, .op = StoreOp::kAdd, .keys = {key}, .number = number});
  }
  StoreReply get(std::vector<std::string> keys) {
    return reply_to({.id = ++last_id, .op = StoreOp::kGet, .keys = std::move(keys)});
  }
  StoreReply reply_to(StoreRequest request) {
    const uint64_t id = request.id;
    ask(2, std::move(request));
    return replies.at(id);
  }
  void erase(const std::string& key) {
    EXPECT_EQ(reply_to({.id = ++last_id, .op = StoreOp::kDelete, .keys = {key}}).number, 1);
  }
  bool answered(uint64_t id) const { return replies.count(id) > 0; }

  StoreLimits limits;
  uint64_t last_id = 0;
  StoreState::TimePoint now = Deadline::Clock::now();
  std::map<uint64_t, StoreReply> replies;
  std::map<uint64_t, uint64_t> clients;  // whom a reply went to
  StoreState state{limits, [this](uint64_t client, const StoreReply& reply) {
                     EXPECT_TRUE(replies.emplace(reply.id, reply).second) << "a second reply";
                     clients[reply.id] = client;
                   }};
};

TEST_F(StoreRules, AWaiterIsAnsweredOnceWithItsLastKey) {
  const uint64_t waiter = wait(1, {"a", "b", "a", "c"});
  set("b");
  set("c");
  EXPECT_FALSE(answered(waiter));
  EXPECT_EQ(state.num_waiters(), 1u);
  set("a");
  ASSERT_TRUE(answered(waiter));
  EXPECT_EQ(clients.at(waiter), 1u);
  EXPECT_EQ(replies.at(waiter).status, StoreStatus::kDone);
  EXPECT_EQ(state.num_waiters(), 0u);
  EXPECT_EQ(state.next_deadline(), std::nullopt);
  set("a");
}

TEST_F(StoreRules, AKeyThatIsDeletedMeanwhileIsWaitedForAgain) {
  const uint64_t waiter = wait(1, {"a", "b"});
  set("a");
  erase("a");
  set("b");
  EXPECT_FALSE(answered(waiter)) << "a is not there";
  set("a");
  EXPECT_TRUE(answered(waiter));
}

TEST_F(StoreRules, CompareSetWakes) {
  const uint64_t waiter = wait(1, {"key"});
  EXPECT_EQ(reply_to({.id = ++last_id,
                      .op = StoreOp::kCompareSet,
                      .keys = {"key"},
                      .values = {"other", "new"}})
                .values.at(0),
            "other");
  EXPECT_FALSE(answered(waiter));
  reply_to({.id = ++last_id, .op = StoreOp::kCompareSet, .keys = {"key"}, .values = {"", "new"}});
  EXPECT_TRUE(answered(waiter));
}

TEST_F(StoreRules, DeadlinesNameWhatIsMissing) {
  const auto begin = now;
  const uint64_t late = wait(1, {"there", "missing", "gone"}, 100);
  const uint64_t later = wait(1, {"missing"}, 300);
  set("there");
  EXPECT_EQ(state.next_deadline(), begin + 100ms);
  state.expire(begin + 99ms);
  EXPECT_FALSE(answered(late));

  state.expire(begin + 100ms);
  ASSERT_TRUE(answered(late));
  EXPECT_EQ(replies.at(late).status, StoreStatus::kTimedOut);
  EXPECT_EQ(replies.at(late).text, "timed out after 100 ms; missing: missing, gone");
  EXPECT_FALSE(answered(later));
  EXPECT_EQ(state.next_deadline(), begin + 300ms);

  set("missing");
  EXPECT_EQ(replies.at(later).status, StoreStatus::kDone);
  state.expire(begin + 1h);
}

TEST_F(StoreRules, ImpossibleTimeoutsAreBounded) {
  const uint64_t past = wait(1, {"a"}, -5);
  const uint64_t endless = wait(1, {"a"}, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(state.next_deadline(), now);
  state.expire(now);
  EXPECT_TRUE(answered(past));
  EXPECT_FALSE(answered(endless));
  EXPECT_EQ(state.next_deadline(), now + kMaxStoreTimeout);
}

TEST_F(StoreRules, NobodyAnswersAClientThatIsGone) {
  const uint64_t gone = wait(1, {"a", "b"});
  const uint64_t timed = wait(1, {"b"}, 10);
  const uint64_t stays = wait(2, {"a"});
  state.forget(1);
  EXPECT_EQ(state.num_waiters(), 1u);
  set("a");
  set("b");
  state.expire(now + 1h);
  EXPECT_FALSE(answered(gone));
  EXPECT_FALSE(answered(timed));
  EXPECT_TRUE(answered(stays));
}

TEST_F(StoreRules, RequestsOfTheWrongShapeChangeNothing) {
  const auto refused = [&](StoreRequest request) {
    request.id = ++last_id;
    return reply_to(std::move(request)).status == StoreStatus::kRefused;
  };
  EXPECT_TRUE(refused({.op = StoreOp::kSet, .keys = {"a", "b"}, .values = {"1"}}));
  EXPECT_TRUE(refused({.op = StoreOp::kAdd, .keys = {}, .number = 1}));
  EXPECT_TRUE(refused({.op = StoreOp::kAppend, .keys = {"a"}, .values = {}}));
  EXPECT_TRUE(refused({.op = StoreOp::kCompareSet, .keys = {"a"}, .values = {"1"}}));
  EXPECT_TRUE(refused({.op = StoreOp::kDelete, .keys = {"a", "b"}}));
  EXPECT_TRUE(refused({.op = StoreOp::kCheck, .keys = {"a"}, .values = {"1"}}));
  EXPECT_TRUE(refused({.op = StoreOp::kCountKeys, .keys = {"a"}}));
  EXPECT_EQ(state.num_keys(), 0u);
}

TEST_F(StoreRules, OnlyNumbersAreAddedTo) {
  set("text", "12a");
  EXPECT_EQ(add("text", 1).status, StoreStatus::kRefused);
  EXPECT_EQ(get({"text"}).values.at(0), "12a");
  set("large", std::to_string(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(add("large", 1).status, StoreStatus::kRefused);
  EXPECT_EQ(add("large", -1).number, std::numeric_limits<int64_t>::max() - 1);
}

TEST_F(StoreRules, BytesAreCounted) {
  set("key", "12345");
  EXPECT_EQ(state.stored_bytes(), 8u);
  set("key", "1");
  EXPECT_EQ(state.stored_bytes(), 4u);
  reply_to({.id = ++last_id, .op = StoreOp::kAppend, .keys = {"key"}, .values = {"23"}});
  EXPECT_EQ(state.stored_bytes(), 6u);
  add("n", 7);
  EXPECT_EQ(state.stored_bytes(), 8u);
  erase("key");
  erase("n");
  EXPECT_EQ(state.stored_bytes(), 0u);
}

class StoreBounds : public StoreRules {
 protected:
  StoreBounds() {
    limits.max_key_bytes = 10;
    limits.max_value_bytes = 100;
    limits.max_frame_bytes = 400;
    limits.max_keys = 3;
    limits.max_stored_bytes = 250;
    limits.max_waiters = 2;
    bounded.emplace(limits, [this](uint64_t, const StoreReply& reply) { last = reply; });
  }
  StoreStatus status(StoreRequest request) {
    last.reset();
    bounded->handle(1, std::move(request), now);
    return last ? last->status : StoreStatus::kDone;
  }
  StoreStatus put(const std::string& key, size_t size) {
    return status({.op = StoreOp::kSet, .keys = {key}, .values = {std::string(size, 'x')}});
  }
  std::optional<StoreState> bounded;
  std::optional<StoreReply> last;
};

TEST_F(StoreBounds, SizesOfOneKey) {
  EXPECT_EQ(put("12345678901", 1), StoreStatus::kRefused);
  EXPECT_EQ(put("key", 101), StoreStatus::kRefused);
  EXPECT_EQ(put("key", 100), StoreStatus::kDone);
  EXPECT_EQ(status({.op = StoreOp::kAppend, .keys = {"key"}, .values = {"x"}}),
            StoreStatus::kRefused);
  EXPECT_EQ(bounded->stored_bytes(), 103u);
}

TEST_F(StoreBounds, OneReply) {
  EXPECT_EQ(put("key", 100), StoreStatus::kDone);
  EXPECT_EQ(status({.op = StoreOp::kGet, .keys = {"key", "key"}}), StoreStatus::kDone);
  EXPECT_EQ(status({.op = StoreOp::kGet, .keys = {"key", "key", "key", "key"}}),
            StoreStatus::kRefused);
}

TEST_F(StoreBounds, AllOfTheStore) {
  EXPECT_EQ(put("a", 100), StoreStatus::kDone);
  EXPECT_EQ(put("b", 100), StoreStatus::kDone);
  EXPECT_EQ(put("c", 50), StoreStatus::kFull) << "253 bytes";
  EXPECT_EQ(put("c", 1), StoreStatus::kDone);
  EXPECT_EQ(put("d", 1), StoreStatus::kFull) << "four keys";
  EXPECT_EQ(status({.op = StoreOp::kAdd, .keys = {"d"}, .number = 1}), StoreStatus::kFull);
  EXPECT_EQ(status({.op = StoreOp::kAppend, .keys = {"d"}, .values = {"x"}}), StoreStatus::kFull);
  EXPECT_EQ(status({.op = StoreOp::kCompareSet, .keys = {"d"}, .values = {"", "x"}}),
            StoreStatus::kFull);
  EXPECT_EQ(status({.op = StoreOp::kDelete, .keys = {"a"}}), StoreStatus::kDone);
  EXPECT_EQ(put("d", 1), StoreStatus::kDone);
}

TEST_F(StoreBounds, Waiters) {
  const StoreRequest waiting{.op = StoreOp::kWait, .keys = {"a"}, .timeout_ms = 1000};
  EXPECT_EQ(status(waiting), StoreStatus::kDone) << "no answer yet";
  EXPECT_EQ(status(waiting), StoreStatus::kDone);
  EXPECT_EQ(status(waiting), StoreStatus::kFull);
  EXPECT_EQ(put("a", 1), StoreStatus::kDone);
  EXPECT_EQ(bounded->num_waiters(), 0u);
}

TEST(StoreFrames, KeyLists) {
  EXPECT_EQ(key_list({}), "");
  EXPECT_EQ(key_list({"a", "b"}), "a, b");
  EXPECT_EQ(key_list(std::vector<std::string>(11, "k")), "k, k, k, k, k, k, k, k and 3 more");
}

TEST(StoreFrames, TravelAsBytes) {
  const StoreRequest request{.id = 7,
                             .op = StoreOp::kCompareSet,
                             .keys = {"key"},
                             .values = {"", std::string("\0x", 2)},
                             .number = -3,
                             .timeout_ms = 5};
  const std::string frame = frame_of(request);
  uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof length);
  ASSERT_EQ(frame.size(), sizeof length + length);
  const auto read = from_bytes<StoreRequest>(std::string_view(frame).substr(sizeof length));
  EXPECT_EQ(read.id, 7u);
  EXPECT_EQ(read.op, StoreOp::kCompareSet);
  EXPECT_EQ(read.keys, request.keys);
  EXPECT_EQ(read.values, request.values);
  EXPECT_EQ(read.number, -3);
  EXPECT_EQ(read.timeout_ms, 5);
}

TEST(StoreFrames, UnknownOperationsAreCorrupt) {
  std::string content = to_bytes(StoreRequest{.id = 1});
  content[sizeof(uint64_t)] = 99;
  EXPECT_THROW(from_bytes<StoreRequest>(content), Error);
  EXPECT_THROW(from_bytes<StoreRequest>(content.substr(0, 9)), Error);
}

}  // namespace
}  // namespace retort::rpc::rendezvous::testing
