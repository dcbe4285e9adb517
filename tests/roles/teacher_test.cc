// The teacher behind real RPC: what it answers, what it refuses, and how requests that wait are
// merged.
#include "roles/teacher/server.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "models/checkpoint.h"
#include "models/packed.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

std::string golden_model() {
  return std::string(std::getenv("RETORT_SOURCE_DIR")) + "/tests/recipes/goldens/teacher";
}

ForwardRequest request(uint64_t id, const std::vector<std::vector<int32_t>>& rows,
                       PayloadKind kind) {
  const models::PackedTokens tokens = models::pack_rows(rows);
  std::vector<int64_t> wanted;
  for (int64_t s = 0; s < tokens.num_sequences(); ++s)
    for (int64_t i = tokens.cu_seqlens[static_cast<size_t>(s)];
         i + 1 < tokens.cu_seqlens[static_cast<size_t>(s) + 1]; ++i)
      wanted.push_back(i);
  return {.request_id = id,
          .step = 1,
          .input_ids = tokens.input_ids.to(at::kInt),
          .cu_seqlens = at::tensor(tokens.cu_seqlens, at::kLong).to(at::kInt),
          .positions = at::tensor(wanted, at::kLong).to(at::kInt),
          .spec = {.kind = kind, .top_k = 5}};
}

class TeacherTest : public ::testing::Test {
 protected:
  void connect(Teacher::Batching batching, int64_t max_merged_tokens = Teacher::kMaxMergedTokens) {
    teacher.serve(server, queue, batching, max_merged_tokens);
    client.connect("teacher/0", server.address(), Deadline::after(30s));
  }
  // Runs what is queued until `replies` are there; before that, waits until `calls` calls are
  // queued.
  void drain(size_t calls) {
    const Deadline deadline = Deadline::after(30s);
    while (queue->size() < calls && !deadline.expired())
      std::this_thread::sleep_for(1ms);
    ASSERT_EQ(queue->size(), calls);
    while (queue->size() > 0)
      (*queue->pop(deadline))();
  }
  Teacher teacher{"teacher/0", models::load_decoder(golden_model(), at::kFloat),
                  models::Tokenizer::load(golden_model())};
  std::shared_ptr<rpc::HandlerQueue> queue = std::make_shared<rpc::HandlerQueue>(64);
  rpc::Agent server{{.name = "teacher/0", .secret = "s"}};
  rpc::Agent client{{.name = "student/0", .secret = "s"}};
  const std::vector<std::vector<std::vector<int32_t>>> packs{
      {{1, 2, 3, 4}, {5, 6}}, {{7, 8, 9}}, {{3, 1, 4, 1, 5, 9, 2, 6}}};
};

TEST_F(TeacherTest, MergesWhatWaitsIntoOneForward) {
  connect(Teacher::Batching::kDynamic);
  std::vector<Future<Payload>> replies;
  const PayloadKind kinds[] = {PayloadKind::kHiddenStates, PayloadKind::kTopK,
                               PayloadKind::kTargetLogProbs};
  for (size_t i = 0; i < packs.size(); ++i)
    replies.push_back(client.call("teacher/0", kTeacherForward, request(i, packs[i], kinds[i])));
  auto bad = client.call("teacher/0", kTeacherForward, request(9, {{1, 999}}, PayloadKind::kFull));
  drain(4);
  EXPECT_EQ(teacher.forwards(), 1);
  EXPECT_EQ(teacher.requests_served(), 3);
  for (size_t i = 0; i < packs.size(); ++i) {
    const Payload merged = replies[i].get(Deadline::after(30s)),
                  alone = teacher.forward(request(i, packs[i], kinds[i]));
    EXPECT_EQ(merged.label.request_id, i);
    EXPECT_EQ(merged.label.sequence_hash, alone.label.sequence_hash);
    const auto near = [](const at::Tensor& a, const at::Tensor& b) {
      return a.defined() == b.defined() &&
             (!a.defined() || (a - b).abs().max().item<double>() < 1e-5);
    };
    EXPECT_TRUE(near(merged.hidden, alone.hidden)) << i;
    EXPECT_TRUE(near(merged.logps, alone.logps)) << i;
    EXPECT_TRUE(near(merged.log_tail, alone.log_tail)) << i;
    EXPECT_TRUE(near(merged.ids, alone.ids)) << i;
  }
  try {
    bad.get(Deadline::after(30s));
    FAIL() << "a token outside the vocabulary was accepted";
  } catch (const Error& error) {
    // and it did not spoil its neighbours
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  }
}

TEST_F(TeacherTest, MergedForwardsKeepTheirLimitAndSkipTheCancelled) {
  connect(Teacher::Batching::kDynamic, 9);  // 6 + 3 tokens fit, the 8 of the third do not
  std::vector<Future<Payload>> replies;
  for (size_t i = 0; i < packs.size(); ++i)
    replies.push_back(
        client.call("teacher/0", kTeacherForward, request(i, packs[i], PayloadKind::kFull)));
  drain(3);
  EXPECT_EQ(teacher.forwards(), 2);
  for (auto& reply : replies)
    EXPECT_EQ(reply.get(Deadline::after(30s)).logps.size(1), 64);
}

TEST_F(TeacherTest, AsSentIsOneForwardForEach) {
  connect(Teacher::Batching::kAsSent);
  std::vector<Future<Payload>> replies;
  for (size_t i = 0; i < packs.size(); ++i)
    replies.push_back(
        client.call("teacher/0", kTeacherForward, request(i, packs[i], PayloadKind::kFull)));
  drain(3);
  EXPECT_EQ(teacher.forwards(), 3);
  for (size_t i = 0; i < packs.size(); ++i)
    EXPECT_TRUE(at::equal(replies[i].get(Deadline::after(30s)).logps,
                          teacher.forward(request(i, packs[i], PayloadKind::kFull)).logps));
}

// Two ranks ask for one part each: one forward. A part that is asked for again is computed again.
TEST_F(TeacherTest, ComputesOnceWhatSeveralRanksAskFor) {
  connect(Teacher::Batching::kAsSent);
  rpc::Agent other{{.name = "student/1", .secret = "s"}};
  other.connect("teacher/0", server.address(), Deadline::after(30s));
  const auto part = [&](int64_t which) {
    ForwardRequest one = request(1, packs[0], PayloadKind::kHiddenStates);
    one.part = which, one.parts = 2;
    return one;
  };
  const at::Tensor whole = teacher.forward(request(1, packs[0], PayloadKind::kHiddenStates)).hidden;
  auto first = client.call("teacher/0", kTeacherForward, part(0)),
       twice = client.call("teacher/0", kTeacherForward, part(0));
  drain(2);
  EXPECT_FALSE(first.ready());
  EXPECT_FALSE(teacher.work());
  EXPECT_EQ(teacher.forwards(), 2);
  EXPECT_TRUE(at::equal(first.get(Deadline::after(30s)).hidden, whole.narrow(0, 0, 2)));
  EXPECT_TRUE(at::equal(twice.get(Deadline::after(30s)).hidden, whole.narrow(0, 0, 2)));
  EXPECT_EQ(teacher.held().num_held(), 1u);
  EXPECT_EQ(teacher.held().held_bytes(), 2 * 16 * 4);
  auto second = other.call("teacher/0", kTeacherForward, part(1));
  drain(1);
  EXPECT_FALSE(teacher.work());
  EXPECT_TRUE(at::equal(second.get(Deadline::after(30s)).hidden, whole.narrow(0, 2, 2)));
  EXPECT_EQ(teacher.forwards(), 2);
  EXPECT_EQ(teacher.held().num_held(), 0u);
  auto again = other.call("teacher/0", kTeacherForward, part(1));
  drain(1);
  EXPECT_FALSE(teacher.work());
  EXPECT_TRUE(at::equal(again.get(Deadline::after(30s)).hidden, whole.narrow(0, 2, 2)));
  EXPECT_EQ(teacher.forwards(), 3);
  ForwardRequest bad = part(2);
  EXPECT_THROW(teacher.forward(bad), Error);
}

struct Puller {
  explicit Puller(HeldResults& results) : results(results) {}
  Future<Payload> pull(const std::string& key, int64_t part) {
    return results.pull(key, part,
                        {.peer = "student/0",
                         .call_id = 1,
                         .deadline = Deadline::after(limit),
                         .cancelled = cancelled});
  }
  HeldResults& results;
  std::chrono::milliseconds limit{30'000};
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

Payload rows(int64_t count) {
  Payload payload;
  payload.hidden = at::ones({count, 4});
  return payload;
}

TEST(HeldResults, HandOverOnceAndKeepWithinTheirLimit) {
  HeldResults results({.max_bytes = 100, .lease = 60s});
  Puller puller(results);
  auto early = puller.pull("a", 0);
  EXPECT_EQ(results.num_waiting(), 1u);
  results.put("a", 0, rows(2));
  EXPECT_EQ(early.get(Deadline::after(1s)).hidden.size(0), 2);
  EXPECT_EQ(results.num_held(), 0u);
  // The oldest goes when the bytes no longer fit, and whoever asks for it is told once.
  results.put("a", 0, {.hidden = at::ones({8, 4}).narrow(0, 0, 4)});
  EXPECT_EQ(results.held_bytes(), 64) << "without the tensor it was cut from";
  results.put("b", 1, rows(3));
  EXPECT_EQ(results.held_bytes(), 48);
  try {
    puller.pull("a", 0);
    FAIL() << "a dropped piece was promised";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  }
  auto asked_again = puller.pull("a", 0);
  EXPECT_FALSE(asked_again.ready());
  results.put("a", 0, rows(4));
  EXPECT_TRUE(asked_again.ready());
  EXPECT_EQ(puller.pull("b", 1).get(Deadline::after(1s)).hidden.size(0), 3);
  EXPECT_EQ(results.held_bytes(), 0);
  results.put("c", 0, rows(100));  // larger than the limit: kept while it is the newest
  EXPECT_EQ(puller.pull("c", 0).get(Deadline::after(1s)).hidden.size(0), 100);
}

TEST(HeldResults, EndWithTheirLeaseAndForgetWhoWentAway) {
  HeldResults results({.max_bytes = 1 << 20, .lease = 1ms});
  Puller puller(results), gone(results);
  results.put("a", 0, rows(2));
  std::this_thread::sleep_for(5ms);
  EXPECT_THROW(puller.pull("a", 0), Error);
  EXPECT_EQ(results.held_bytes(), 0);
  auto cancelled = gone.pull("b", 0);
  auto failed = puller.pull("c", 0);
  gone.cancelled->store(true);
  results.fail("c", std::make_exception_ptr(Error(ErrorCode::kRemote, "no")));
  EXPECT_THROW(failed.get(Deadline::after(1s)), Error);
  auto last = puller.pull("d", 0);
  EXPECT_EQ(results.num_waiting(), 1u) << "the cancelled one is forgotten";
}

TEST(WeightsFingerprint, IsThatOfTheFolder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    int tensors = 0;
    EXPECT_EQ(models::weights_fingerprint(golden_model(), dtype, [&] { ++tensors; }),
              models::weights_fingerprint(models::load_decoder(golden_model(), dtype)));
    EXPECT_EQ(tensors, 21);
  }
}

TEST_F(TeacherTest, TargetLogProbsAreThoseOfTheNextTokens) {
  const auto full = teacher.forward(request(1, packs[0], PayloadKind::kFull));
  const auto target = teacher.forward(request(1, packs[0], PayloadKind::kTargetLogProbs));
  const at::Tensor next = at::tensor({2, 3, 4, 6}, at::kLong);
  EXPECT_TRUE(
      at::allclose(target.logps, full.logps.gather(1, next.unsqueeze(1)).squeeze(1), 1e-6, 1e-6));
  ForwardRequest last = request(2, packs[0], PayloadKind::kTargetLogProbs);
  last.positions = at::tensor({3}, at::kInt);  // the last token of the first sequence
  EXPECT_THROW(teacher.forward(last), Error);
}

}  // namespace
}  // namespace retort::roles
