// Which requests are computed together, once, anew, or not at all.
#include "roles/teacher/request_queue.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/roles/ask_teacher.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

ForwardRequest request(uint64_t id, int64_t tokens, int64_t part = 0, int64_t parts = 1) {
  return {.request_id = id,
          .input_ids = at::zeros({tokens}, at::kInt),
          .cu_seqlens = at::tensor({int64_t{0}, tokens}, at::kInt),
          .positions = at::zeros({1}, at::kInt),
          .part = part,
          .parts = parts,
          .columns = {}};
}

class RequestQueueTest : public ::testing::Test {
 protected:
  void add(const ForwardRequest& one, const rpc::CallContext& caller = some_call()) {
    queue.add(result_key(one), one, caller);
  }
  std::vector<uint64_t> take(int64_t max_tokens) {
    std::vector<uint64_t> ids;
    const RequestBatch batch = queue.take(max_tokens);
    EXPECT_EQ(batch.keys.size(), batch.requests.size());
    for (size_t i = 0; i < batch.requests.size(); ++i) {
      EXPECT_EQ(batch.keys[i], result_key(batch.requests[i]));
      ids.push_back(batch.requests[i].request_id);
    }
    return ids;
  }
  using Ids = std::vector<uint64_t>;
  RequestQueue queue{60s};
};

TEST_F(RequestQueueTest, TakesInOrderAsManyAsFit) {
  for (uint64_t id = 1; id <= 5; ++id)
    add(request(id, id == 3 ? 20 : 4));
  EXPECT_EQ(take(9), (Ids{1, 2}));
  EXPECT_EQ(take(9), (Ids{3})) << "one that does not fit is computed alone";
  EXPECT_EQ(take(0), (Ids{4})) << "as sent";
  EXPECT_FALSE(queue.empty());
  EXPECT_EQ(take(0), (Ids{5}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(take(9), (Ids{}));
}

ForwardRequest keeps(uint64_t id) {
  ForwardRequest one = request(id, 4);
  one.spec = {.kind = PayloadKind::kTopK, .top_k = 1, .support = Support::kStudent};
  return one;
}
ForwardRequest names(uint64_t id, int64_t part = 0, int64_t parts = 1) {
  ForwardRequest one = keeps(id);
  one.part = part;
  one.parts = parts;
  one.ids = at::zeros({1, 1}, at::kInt);
  return one;
}

// A student waits for these. What is computed ahead for later steps waits, but for their own rows.
TEST_F(RequestQueueTest, TakesRequestsThatNameIdsFirst) {
  for (uint64_t id = 1; id <= 4; ++id)
    add(keeps(id));
  add(names(9));  // whose rows are there, or lost
  add(names(3, 0, 2));
  add(names(3, 1, 2));
  EXPECT_EQ(take(0), (Ids{9}));
  EXPECT_EQ(take(0), (Ids{3})) << "its rows";
  EXPECT_FALSE(queue.empty());
  add(names(1));
  const RequestBatch batch = queue.take(12);
  ASSERT_EQ(batch.requests.size(), 3u);
  EXPECT_EQ(batch.requests[0].request_id, 3u);
  EXPECT_TRUE(batch.requests[0].ids.defined());
  EXPECT_EQ(batch.requests[1].request_id, 1u);
  EXPECT_FALSE(batch.requests[1].ids.defined());
  EXPECT_TRUE(batch.requests[2].ids.defined());
  EXPECT_EQ(take(100), (Ids{2, 4}));
}

TEST_F(RequestQueueTest, DropsThoseWhoseCallersHaveAllGone) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  add(request(1, 4), some_call(cancelled));
  add(request(2, 4), some_call(cancelled));
  add(request(2, 4));  // somebody else waits for it too
  add(request(3, 4), some_call(cancelled));
  add(request(4, 4));
  cancelled->store(true);
  EXPECT_EQ(take(100), (Ids{2, 4}));

  add(request(1, 4));
  EXPECT_EQ(take(100), (Ids{1})) << "it can be asked for again";
}

TEST_F(RequestQueueTest, TheTimeOfACallBeginsWhenItIsTaken) {
  const rpc::CallContext first = some_call(), second = some_call();
  first.clock->begin();  // as the handler did
  add(request(1, 4), first);
  add(request(2, 4), second);
  EXPECT_FALSE(first.clock->running());
  EXPECT_EQ(take(0), (Ids{1}));
  EXPECT_TRUE(first.clock->running());
  EXPECT_FALSE(second.clock->running());
}

TEST_F(RequestQueueTest, ComputesOnceForAllParts) {
  add(request(1, 4, 0, 3));
  add(request(1, 4, 1, 3));
  add(request(1, 4, 1, 3));
  EXPECT_EQ(take(100), (Ids{1}));
  add(request(1, 4, 2, 3));
  EXPECT_TRUE(queue.empty()) << "the last part is there";

  add(request(1, 4, 2, 3));
  EXPECT_EQ(take(100), (Ids{1})) << "all parts went out, one is asked for again";
  add(request(1, 4, 2, 3));
  EXPECT_EQ(take(100), (Ids{1})) << "and once more, while others were not asked for";
}

TEST_F(RequestQueueTest, ForgetsWhatFailedAndWhatIsOld) {
  add(request(1, 4, 0, 2));
  queue.forget(result_key(request(1, 4, 0, 2)));
  EXPECT_EQ(take(100), (Ids{1})) << "it waited still";
  queue.forget(result_key(request(1, 4, 0, 2)));
  add(request(1, 4, 1, 2));
  EXPECT_EQ(take(100), (Ids{1}));

  RequestQueue brief(1ms);
  const ForwardRequest one = request(2, 4, 0, 2);
  brief.add(result_key(one), one, some_call());
  EXPECT_EQ(brief.take(100).requests.size(), 1u);
  std::this_thread::sleep_for(5ms);
  brief.add(result_key(one), request(2, 4, 1, 2), some_call());
  EXPECT_FALSE(brief.empty()) << "the other part is no longer kept";
}

}  // namespace
}  // namespace retort::roles
