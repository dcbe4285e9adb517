// Pieces of answers go out once, are kept within their limits, and are not kept for nobody.
#include "roles/teacher/answer_store.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "tests/roles/ask_teacher.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

Payload rows(int64_t count) {
  Payload payload;
  payload.hidden = at::ones({count, 4});
  return payload;
}

ErrorCode code_of(Future<Payload>& reply) {
  try {
    reply.get(Deadline::after(1s));
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "an answer instead of an error";
  return ErrorCode::kRemote;
}

TEST(AnswerStore, GivesOutOnceAndKeepsWithinItsLimit) {
  AnswerStore store({.max_bytes = 100, .lease = 60s});
  auto early = store.pull("a", 0, some_call());
  EXPECT_EQ(store.num_waiting(), 1u);
  store.put("a", 0, rows(2));
  EXPECT_EQ(early.get(Deadline::after(1s)).hidden.size(0), 2);
  EXPECT_EQ(store.num_kept(), 0u);

  // The oldest goes when the bytes no longer fit, and whoever asks for it is told once.
  store.put("a", 0, {.hidden = at::ones({8, 4}).narrow(0, 0, 4)});
  EXPECT_EQ(store.kept_bytes(), 64) << "without the tensor it was cut from";
  store.put("b", 1, rows(3));
  EXPECT_EQ(store.kept_bytes(), 48);
  try {
    store.pull("a", 0, some_call());
    FAIL() << "a dropped piece was promised";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  }
  auto asked_again = store.pull("a", 0, some_call());
  EXPECT_FALSE(asked_again.ready());
  store.put("a", 0, rows(4));
  EXPECT_TRUE(asked_again.ready());
  EXPECT_EQ(store.pull("b", 1, some_call()).get(Deadline::after(1s)).hidden.size(0), 3);
  EXPECT_EQ(store.kept_bytes(), 0);

  store.put("c", 0, rows(100));  // larger than the limit: kept while it is the newest
  EXPECT_EQ(store.pull("c", 0, some_call()).get(Deadline::after(1s)).hidden.size(0), 100);
}

TEST(AnswerStore, AnswersThoseWhoWaitAndKeepsNothing) {
  AnswerStore store({.max_bytes = 100, .lease = 60s});
  auto first = store.pull("a", 0, some_call());
  auto second = store.pull("a", 0, some_call());
  EXPECT_TRUE(store.answer_waiting("a", 0, rows(2)));
  EXPECT_EQ(first.get(Deadline::after(1s)).hidden.size(0), 2);
  EXPECT_EQ(second.get(Deadline::after(1s)).hidden.size(0), 2);
  EXPECT_FALSE(store.answer_waiting("a", 0, rows(2)));
  EXPECT_EQ(store.num_kept(), 0u);
}

TEST(AnswerStore, EndsWithTheLeaseAndForgetsWhoWentAway) {
  AnswerStore store({.max_bytes = 1 << 20, .lease = 1ms});
  store.put("a", 0, rows(2));
  std::this_thread::sleep_for(5ms);
  EXPECT_THROW(store.pull("a", 0, some_call()), Error);
  EXPECT_EQ(store.kept_bytes(), 0);

  const auto gone = std::make_shared<std::atomic<bool>>(false);
  auto cancelled = store.pull("b", 0, some_call(gone));
  auto failed = store.pull("c", 0, some_call());
  gone->store(true);
  store.fail("c", std::make_exception_ptr(Error(ErrorCode::kRemote, "no")));
  EXPECT_EQ(code_of(failed), ErrorCode::kRemote);

  auto last = store.pull("d", 0, some_call());
  EXPECT_EQ(store.num_waiting(), 1u) << "the other one is forgotten";
  EXPECT_EQ(code_of(cancelled), ErrorCode::kClosed);
}

}  // namespace
}  // namespace retort::roles
