// The teacher behind real RPC: what it answers, what it refuses, and how requests that wait are
// merged.
#include "roles/teacher/server.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <thread>

#include "models/checkpoint/checkpoint.h"
#include "models/ops/packed.h"
#include "roles/teacher/requests.h"
#include "roles/teacher/shared_packs.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

std::string golden_model() {
  return (test::source_folder() / "tests/recipes/goldens/teacher").string();
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

// The answer by its definition: one forward over the request's pack in inference mode.
Payload answer_by_definition(const models::Decoder& decoder, const ForwardRequest& request) {
  const c10::InferenceMode inference;
  const models::PackedTokens tokens = unpack_request(request, decoder.config().vocab_size);
  at::Tensor targets;
  if (request.spec.kind == PayloadKind::kTargetLogProbs) targets = targets_of(request);
  const models::Head head = decoder.head();
  const at::Tensor rows = decoder.hidden(models::wanting(tokens, request.positions.to(at::kLong)));
  return make_payload(rows, head.weight, request.spec, targets, head.vocab);
}

void expect_same_bits(const Payload& got, const Payload& expected) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() == b.defined() &&
           (!a.defined() || (a.scalar_type() == b.scalar_type() && at::equal(a, b)));
  };
  const std::string_view kind = enum_name(expected.label.spec.kind);
  EXPECT_TRUE(same(got.hidden, expected.hidden)) << kind;
  EXPECT_TRUE(same(got.ids, expected.ids)) << kind;
  EXPECT_TRUE(same(got.logps, expected.logps)) << kind;
  EXPECT_TRUE(same(got.log_tail, expected.log_tail)) << kind;
  EXPECT_EQ(got.masked_mass_sum, expected.masked_mass_sum) << kind;
  EXPECT_EQ(got.label.num_rows, expected.label.num_rows) << kind;
}

class TeacherTest : public ::testing::Test {
 protected:
  void connect(Teacher::Batching batching, int64_t max_merged_tokens = Teacher::kMaxMergedTokens) {
    teacher.set_batching(batching, max_merged_tokens);
    teacher.serve(server, queue);
    client.connect("teacher/0", server.address(), Deadline::after(30s));
  }
  // Waits until `calls` calls have arrived, then runs their handlers.
  void run_handlers(size_t calls) {
    const Deadline deadline = Deadline::after(30s);
    while (queue->size() < calls && !deadline.expired())
      std::this_thread::sleep_for(1ms);
    ASSERT_EQ(queue->size(), calls);
    while (queue->size() > 0)
      (*queue->pop(deadline))();
  }
  // And computes what they ask for.
  void answer(size_t calls) {
    run_handlers(calls);
    while (teacher.work()) {
    }
  }
  // A request that waits alone is computed as by definition, whatever the batching.
  void expect_lone_answers_by_definition() {
    const models::Decoder decoder = models::load_decoder(golden_model(), at::kFloat);
    uint64_t id = 0;
    for (const PayloadKind kind : {PayloadKind::kHiddenStates, PayloadKind::kTopK,
                                   PayloadKind::kFull, PayloadKind::kTargetLogProbs})
      for (const auto& pack : packs) {
        const ForwardRequest one = request(id++, pack, kind);
        auto reply = client.call("teacher/0", kTeacherForward, one);
        answer(1);
        expect_same_bits(reply.get(Deadline::after(30s)), answer_by_definition(decoder, one));
      }
    EXPECT_EQ(teacher.forwards(), static_cast<int64_t>(id));
    EXPECT_EQ(teacher.requests_served(), static_cast<int64_t>(id));
    EXPECT_EQ(teacher.store().num_kept(), 0u);
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
  answer(4);
  EXPECT_EQ(teacher.forwards(), 1);
  EXPECT_EQ(teacher.requests_served(), 3);

  for (size_t i = 0; i < packs.size(); ++i) {
    const Payload merged = replies[i].get(Deadline::after(30s)),
                  alone = ask_teacher(teacher, request(i, packs[i], kinds[i]));
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

TEST_F(TeacherTest, MergedForwardsKeepTheirLimit) {
  connect(Teacher::Batching::kDynamic, 9);  // 6 + 3 tokens fit, the 8 of the third do not
  std::vector<Future<Payload>> replies;
  for (size_t i = 0; i < packs.size(); ++i)
    replies.push_back(
        client.call("teacher/0", kTeacherForward, request(i, packs[i], PayloadKind::kFull)));
  answer(3);
  EXPECT_EQ(teacher.forwards(), 2);
  for (auto& reply : replies)
    EXPECT_EQ(reply.get(Deadline::after(30s)).logps.size(1), 64);
}

TEST_F(TeacherTest, AsSentIsOneForwardForEach) {
  connect(Teacher::Batching::kAsSent);
  const models::Decoder decoder = models::load_decoder(golden_model(), at::kFloat);
  std::vector<Future<Payload>> replies;
  for (size_t i = 0; i < packs.size(); ++i)
    replies.push_back(
        client.call("teacher/0", kTeacherForward, request(i, packs[i], PayloadKind::kFull)));
  answer(3);
  EXPECT_EQ(teacher.forwards(), 3);
  for (size_t i = 0; i < packs.size(); ++i)
    expect_same_bits(replies[i].get(Deadline::after(30s)),
                     answer_by_definition(decoder, request(i, packs[i], PayloadKind::kFull)));
}

// Completions of one prompt: their prompt is computed once, which changes no answer.
TEST_F(TeacherTest, WhatSequencesShareIsComputedOnce) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 20; ++i)
    prompt.push_back((7 * i + 3) % 60);
  std::vector<std::vector<int32_t>> rows(4, prompt);
  rows[0].insert(rows[0].end(), {5, 6, 7});
  rows[1].insert(rows[1].end(), {8, 9});
  rows[2] = {1, 2, 3};
  rows[3].insert(rows[3].end(), {4, 4, 4, 4});

  const models::Decoder decoder = models::load_decoder(golden_model(), at::kFloat);
  for (const PayloadKind kind : {PayloadKind::kHiddenStates, PayloadKind::kTargetLogProbs}) {
    const ForwardRequest one = request(1, rows, kind);
    MergedPacks merged = merge_packs({one}, decoder.config().vocab_size);
    share_prefixes(merged);
    EXPECT_EQ(merged.tokens.num_tokens(), 20 + 3 + 2 + 3 + 24);
    EXPECT_EQ(merged.rows.at(0).numel(), one.positions.numel());

    const Payload got = ask_teacher(teacher, one);
    const Payload expected = answer_by_definition(decoder, one);
    const auto numbers = [&](const Payload& payload) {
      return kind == PayloadKind::kHiddenStates ? payload.hidden : payload.logps;
    };
    EXPECT_TRUE(at::allclose(numbers(got), numbers(expected), 1e-5, 1e-6)) << enum_name(kind);
    EXPECT_GT(numbers(expected).abs().max().item<double>(), 0.1);
  }
}

TEST_F(TeacherTest, AsSentALoneRequestHasTheBitsOfItsDefinition) {
  connect(Teacher::Batching::kAsSent);
  expect_lone_answers_by_definition();
}

TEST_F(TeacherTest, DynamicALoneRequestHasTheBitsOfItsDefinition) {
  connect(Teacher::Batching::kDynamic);
  expect_lone_answers_by_definition();
}

// A bad one among others: of each kind of refusal.
TEST_F(TeacherTest, ABadRequestAmongMergedOnesFailsAlone) {
  connect(Teacher::Batching::kDynamic);
  std::vector<ForwardRequest> bad(4, request(7, packs[0], PayloadKind::kTargetLogProbs));
  bad[0].positions = at::tensor({3}, at::kInt);  // the last token of the first sequence
  bad[1].spec.common_vocab = 4;                  // a target is 6
  bad[2].cu_seqlens = at::tensor({0, 4, 5}, at::kInt);
  bad[3].part = 1;
  auto before = client.call("teacher/0", kTeacherForward, request(1, packs[0], PayloadKind::kFull));
  std::vector<Future<Payload>> refused;
  for (const ForwardRequest& one : bad)
    refused.push_back(client.call("teacher/0", kTeacherForward, one));
  auto behind = client.call("teacher/0", kTeacherForward, request(2, packs[1], PayloadKind::kFull));
  answer(6);

  EXPECT_EQ(teacher.forwards(), 1);
  EXPECT_EQ(teacher.requests_served(), 2);
  EXPECT_EQ(before.get(Deadline::after(30s)).label.num_rows, 4);
  EXPECT_EQ(behind.get(Deadline::after(30s)).label.num_rows, 2);
  for (Future<Payload>& one : refused)
    try {
      one.get(Deadline::after(30s));
      ADD_FAILURE() << "a bad request was answered";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
}

TEST_F(TeacherTest, DropsWhatIsCancelledWhileItWaits) {
  for (const auto batching : {Teacher::Batching::kAsSent, Teacher::Batching::kDynamic}) {
    Teacher fresh("teacher/0", models::load_decoder(golden_model(), at::kFloat),
                  models::Tokenizer::load(golden_model()));
    rpc::Agent agent{{.name = "teacher/0", .secret = "s"}};
    fresh.set_batching(batching);
    fresh.serve(agent, queue);
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    auto first = fresh.enqueue(request(1, packs[0], PayloadKind::kFull), some_call());
    auto second = fresh.enqueue(request(2, packs[1], PayloadKind::kFull), some_call(cancelled));
    auto third = fresh.enqueue(request(3, packs[2], PayloadKind::kFull), some_call());
    cancelled->store(true);
    while (fresh.work()) {
    }

    EXPECT_EQ(fresh.forwards(), batching == Teacher::Batching::kDynamic ? 1 : 2);
    EXPECT_EQ(fresh.requests_served(), 2);
    EXPECT_EQ(first.get(Deadline::after(1s)).label.request_id, 1u);
    EXPECT_EQ(third.get(Deadline::after(1s)).label.request_id, 3u);
    EXPECT_THROW(second.get(Deadline::after(1s)), Error);
    EXPECT_EQ(fresh.store().num_kept(), 0u);
    EXPECT_EQ(fresh.store().num_waiting(), 0u);
  }
}

// Each request of the pass that failed hears it, and may be asked for again, also for another part
// than the first time. A weight of another shape stands for whatever a forward pass fails at.
TEST_F(TeacherTest, AForwardPassThatFailsFailsItsRequestsAndIsForgotten) {
  models::Decoder decoder = models::load_decoder(golden_model(), at::kFloat);
  at::Tensor weight = decoder.parameters().front().value;
  const at::Tensor good = weight.detach().clone();
  Teacher teacher("teacher/0", std::move(decoder), models::Tokenizer::load(golden_model()));
  teacher.set_batching(Teacher::Batching::kDynamic);
  teacher.serve(server, queue);
  ForwardRequest first_part = request(1, packs[0], PayloadKind::kHiddenStates);
  first_part.parts = 2;
  ForwardRequest second_part = first_part;
  second_part.part = 1;
  const ForwardRequest other = request(2, packs[1], PayloadKind::kFull);

  {
    const c10::NoGradGuard no_grad;
    weight.resize_({0});
  }
  std::vector<Future<Payload>> replies;
  for (const ForwardRequest& one : {first_part, other})
    replies.push_back(teacher.enqueue(one, some_call()));
  EXPECT_FALSE(teacher.work());
  for (Future<Payload>& reply : replies)
    EXPECT_THROW(reply.get(Deadline::after(1s)), c10::Error);
  EXPECT_EQ(teacher.store().num_waiting(), 0u);

  {
    const c10::NoGradGuard no_grad;
    weight.resize_(good.sizes());
    weight.copy_(good);
  }
  EXPECT_EQ(ask_teacher(teacher, second_part).label.part, 1);
  EXPECT_EQ(ask_teacher(teacher, other).label.request_id, 2u);
  EXPECT_EQ(teacher.forwards(), 2);
}

// Nobody waits for a teacher that has stopped.
TEST_F(TeacherTest, StoppingFailsWhatWasNotComputed) {
  connect(Teacher::Batching::kAsSent);
  auto waiting =
      client.call("teacher/0", kTeacherForward, request(1, packs[0], PayloadKind::kFull));
  run_handlers(1);
  teacher.stop();
  test::expect_error(ErrorCode::kPeerLost, "the teacher stops",
                     [&] { waiting.get(Deadline::after(30s)); });
  EXPECT_EQ(teacher.forwards(), 0);
}

// Two ranks ask for one part each: one forward. A part that is asked for again is computed again.
TEST_F(TeacherTest, ComputesOnceWhatSeveralRanksAskFor) {
  connect(Teacher::Batching::kAsSent);
  rpc::Agent other{{.name = "student/1", .secret = "s"}};
  other.connect("teacher/0", server.address(), Deadline::after(30s));
  const auto part = [&](int64_t which) {
    ForwardRequest one = request(1, packs[0], PayloadKind::kHiddenStates);
    one.part = which;
    one.parts = 2;
    return one;
  };
  const at::Tensor whole =
      ask_teacher(teacher, request(1, packs[0], PayloadKind::kHiddenStates)).hidden;
  auto first = client.call("teacher/0", kTeacherForward, part(0)),
       twice = client.call("teacher/0", kTeacherForward, part(0));
  run_handlers(2);

  EXPECT_FALSE(first.ready());
  EXPECT_FALSE(teacher.work());
  EXPECT_EQ(teacher.forwards(), 2);
  EXPECT_TRUE(at::equal(first.get(Deadline::after(30s)).hidden, whole.narrow(0, 0, 2)));
  EXPECT_TRUE(at::equal(twice.get(Deadline::after(30s)).hidden, whole.narrow(0, 0, 2)));
  EXPECT_EQ(teacher.store().num_kept(), 1u);
  EXPECT_EQ(teacher.store().kept_bytes(), 2 * 16 * 4);

  auto second = other.call("teacher/0", kTeacherForward, part(1));
  run_handlers(1);
  EXPECT_FALSE(teacher.work());
  EXPECT_TRUE(at::equal(second.get(Deadline::after(30s)).hidden, whole.narrow(0, 2, 2)));
  EXPECT_EQ(teacher.forwards(), 2);
  EXPECT_EQ(teacher.store().num_kept(), 0u);

  auto again = other.call("teacher/0", kTeacherForward, part(1));
  run_handlers(1);
  EXPECT_FALSE(teacher.work());
  EXPECT_TRUE(at::equal(again.get(Deadline::after(30s)).hidden, whole.narrow(0, 2, 2)));
  EXPECT_EQ(teacher.forwards(), 3);
  ForwardRequest bad = part(2);
  EXPECT_THROW(ask_teacher(teacher, bad), Error);
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
  const auto full = ask_teacher(teacher, request(1, packs[0], PayloadKind::kFull));
  const auto target = ask_teacher(teacher, request(1, packs[0], PayloadKind::kTargetLogProbs));
  const at::Tensor next = at::tensor({2, 3, 4, 6}, at::kLong);
  EXPECT_TRUE(
      at::allclose(target.logps, full.logps.gather(1, next.unsqueeze(1)).squeeze(1), 1e-6, 1e-6));
  ForwardRequest last = request(2, packs[0], PayloadKind::kTargetLogProbs);
  last.positions = at::tensor({3}, at::kInt);  // the last token of the first sequence
  EXPECT_THROW(ask_teacher(teacher, last), Error);
}

}  // namespace
}  // namespace retort::roles
