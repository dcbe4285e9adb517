// An engine's answers become what a teacher of ours would have sent.
#include "engines/served/engine_payload.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using roles::PayloadKind;
using roles::PayloadSpec;
using test::error_of;

constexpr int64_t kVocab = 40;
constexpr Abilities kAll{.draws = true, .scores = true, .max_top_k = kVocab};

// Random distributions, and what an engine says of them: the k most probable ids.
struct Rows {
  explicit Rows(int64_t k, int64_t rows = 6) : logits(at::randn({rows, kVocab}) * 3) {
    const auto [values, indices] = at::log_softmax(logits, 1).topk(k);
    scored.ids = indices.to(at::kInt);
    scored.log_probs = values;
    scored.given.resize(static_cast<size_t>(rows));
  }
  at::Tensor logits;
  Scored scored;
};

// The same by the code of our own teachers: the head is the identity.
roles::Payload ours(const at::Tensor& logits, const PayloadSpec& spec) {
  return roles::make_payload(logits, at::eye(kVocab), spec);
}

// Two fp32 numbers a bit apart may round to neighbours in bf16.
void expect_close(const roles::Payload& got, const roles::Payload& expected) {
  const double relative = got.logps.scalar_type() == at::kBFloat16 ? 1.0 / 128 : 1e-5;
  EXPECT_TRUE(at::equal(got.ids, expected.ids));
  EXPECT_TRUE(
      at::allclose(got.logps.to(at::kFloat), expected.logps.to(at::kFloat), relative, 1e-5));
  EXPECT_TRUE(at::allclose(got.log_tail.exp(), expected.log_tail.exp(), 1e-5, 1e-6));
}

TEST(EnginePayload, TopKIsThatOfOurTeachers) {
  const Rows rows(8);
  for (const bool bfloat16 : {false, true}) {
    const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = 8, .bfloat16 = bfloat16};
    const roles::Payload payload = payload_of(spec, {rows.scored}, kVocab);
    expect_close(payload, ours(rows.logits, spec));
    EXPECT_EQ(payload.logps.scalar_type(), bfloat16 ? at::kBFloat16 : at::kFloat);
  }
}

TEST(EnginePayload, WholeVocabularyHasNoTail) {
  const Rows rows(kVocab);
  const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = 64};
  const roles::Payload payload = payload_of(spec, {rows.scored}, kVocab);
  EXPECT_EQ(payload.ids.size(1), kVocab);
  EXPECT_TRUE(payload.log_tail.isinf().all().item<bool>());
}

// fp32 sums to 1 before the tail is over; a student that gives the rest any mass would be punished
// without bound.
TEST(EnginePayload, TailIsNeverNothing) {
  Rows rows(2, 1);
  rows.scored.log_probs = at::tensor({0.0F, -30.0F}).unsqueeze(0);
  const roles::Payload payload =
      payload_of({.kind = PayloadKind::kTopK, .top_k = 2}, {rows.scored}, kVocab);
  EXPECT_FLOAT_EQ(payload.log_tail.item<float>(), std::log(0x1p-23F));
}

TEST(EnginePayload, TemperatureIsExactAmongTheIds) {
  const Rows rows(8);
  for (const double temperature : {0.5, 2.0}) {
    const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = 8, .temperature = temperature};
    const roles::Payload payload = payload_of(spec, {rows.scored}, kVocab);
    const at::Tensor chosen = rows.logits.gather(1, rows.scored.ids.to(at::kLong));
    EXPECT_TRUE(at::allclose(payload.logps, at::log_softmax(chosen / temperature, 1), 1e-5, 1e-5));
    EXPECT_TRUE(payload.log_tail.isinf().all().item<bool>());

    // The bound holds, and is no larger than all.
    const at::Tensor shares = at::softmax(rows.logits / temperature, 1);
    const double outside =
        (1 - shares.gather(1, rows.scored.ids.to(at::kLong)).sum(1)).sum().item<double>();
    EXPECT_GE(payload.tail_bound_sum, outside - 1e-5);
    EXPECT_LT(payload.tail_bound_sum, static_cast<double>(rows.logits.size(0)));
  }
}

// The engine's head has four ids more than the student's.
TEST(EnginePayload, PaddingIsLeftOut) {
  constexpr int64_t kCommon = kVocab - 4;
  const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = 8, .common_vocab = kCommon};
  const Rows rows(12);
  const roles::Payload payload = payload_of(spec, {rows.scored}, kVocab);
  const roles::Payload expected = ours(rows.logits, spec);
  EXPECT_TRUE(at::equal(payload.ids, expected.ids));

  // Only the mass of padding that stands among the asked ids is known, so the sum is at most the
  // true one.
  EXPECT_TRUE(at::allclose(payload.logps, expected.logps, 0, 0.05));
  EXPECT_LE(payload.masked_mass_sum, expected.masked_mass_sum + 1e-6);
  EXPECT_GT(payload.masked_mass_sum, 0);
}

TEST(EnginePayload, GivenTokensAreTakenAsTheyCome) {
  const PayloadSpec spec{.kind = PayloadKind::kTargetLogProbs};
  const roles::Payload payload = payload_of(spec,
                                            {{.given = {-1.0F, -2.0F}, .ids = {}, .log_probs = {}},
                                             {.given = {-3.0F}, .ids = {}, .log_probs = {}}},
                                            kVocab);
  EXPECT_TRUE(at::equal(payload.logps, at::tensor({-1.0F, -2.0F, -3.0F})));
}

// What an engine says of ids that the student names, of which it lacks some itself.
TEST(EnginePayload, NamedIdsAreThoseOfOurTeachers) {
  const Rows rows(1);
  const at::Tensor ids =
      (at::arange(6).unsqueeze(1) * 5 + at::arange(8) * 3).remainder(kVocab - 4).to(at::kInt);
  for (const int64_t common : {int64_t{0}, kVocab - 4}) {
    const PayloadSpec spec{.kind = PayloadKind::kTopK,
                           .top_k = 8,
                           .common_vocab = common,
                           .support = roles::Support::kStudent};
    const at::Tensor named = named_ids(spec, ids, kVocab);
    EXPECT_EQ(named.size(1), common == 0 ? 8 : 12) << "and all that the student lacks";
    const at::Tensor answer = at::log_softmax(rows.logits, 1).gather(1, named.to(at::kLong));
    const roles::Payload got =
        payload_of_named(spec, {answer.narrow(0, 0, 4), answer.narrow(0, 4, 2)}, kVocab);
    const roles::Payload expected = roles::make_payload(rows.logits, at::eye(kVocab), spec, ids);
    EXPECT_FALSE(got.ids.defined());
    EXPECT_TRUE(at::allclose(got.logps, expected.logps, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(got.log_tail.exp(), expected.log_tail.exp(), 1e-4, 1e-6));
    EXPECT_NEAR(got.masked_mass_sum, expected.masked_mass_sum, 1e-5);
  }

  // Probabilities of one position that are more than 1 are those of something else.
  const PayloadSpec spec{
      .kind = PayloadKind::kTopK, .top_k = 8, .support = roles::Support::kStudent};
  const at::Tensor logits = at::full({6, 8}, -1.0F);
  EXPECT_EQ(error_of([&] { payload_of_named(spec, {logits}, kVocab); }).code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(payload_of_named(spec, {}, kVocab).logps.sizes(), at::IntArrayRef({0, 8}));
}

TEST(EnginePayload, RefusesWhatIsNoDistribution) {
  Rows rows(8);
  rows.scored.log_probs = rows.scored.log_probs * 0.5;  // tempered
  const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = 8};
  const Error error = error_of([&] { payload_of(spec, {rows.scored}, kVocab); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_NE(error.message().find("add up to more than 1"), std::string::npos) << error.what();

  // Half of what it lists the student has never heard of.
  const PayloadSpec half{.kind = PayloadKind::kTopK, .top_k = 8, .common_vocab = kVocab / 2};
  EXPECT_EQ(error_of([&] { payload_of(half, {Rows(8).scored}, kVocab); }).code(),
            ErrorCode::kMismatch);
}

TEST(EnginePayload, SaysWhatAnEngineCannotGive) {
  const auto refused = [](const PayloadSpec& spec, const Abilities& abilities) {
    return error_of([&] { check_payload_spec(spec, kVocab, abilities); }).message();
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refused({.kind = PayloadKind::kFull}, kAll), "use payload: topk");
  has(refused({.kind = PayloadKind::kHiddenStates}, kAll), "no hidden states");
  has(refused({.kind = PayloadKind::kTargetLogProbs, .temperature = 2}, kAll), "temperature 1");
  has(refused({.kind = PayloadKind::kTargetLogProbs, .common_vocab = 30}, kAll), "student's lacks");
  has(refused({.kind = PayloadKind::kTopK, .top_k = 30}, {.max_top_k = 20}), "--max-logprobs");
  has(refused({.kind = PayloadKind::kTargetLogProbs}, {.draws = true}), "does not score");
  EXPECT_NO_THROW(check_payload_spec({.kind = PayloadKind::kTopK, .top_k = 20}, kVocab, kAll));

  // Ids that the student names, and with them those that it lacks.
  PayloadSpec named{.kind = PayloadKind::kTopK, .top_k = 20, .support = roles::Support::kStudent};
  has(refused(named, kAll), "which vLLM does");
  const Abilities some{.scores = true, .max_top_k = kVocab, .max_named_ids = 22};
  EXPECT_NO_THROW(check_payload_spec(named, kVocab, some));
  named.common_vocab = kVocab - 3;
  has(refused(named, some), "23 are needed (3 of them");
  named.common_vocab = 0;
  named.temperature = 2;
  has(refused(named, some), "temperature 1");
  named.support = roles::Support::kUnion;
  has(refused(named, some), "two forward passes");
}

// Two of three sequences are asked about; positions count from their beginnings.
TEST(EnginePayload, AsksEachSequenceForItsOwnPositions) {
  const roles::ForwardRequest request{.input_ids = at::tensor({1, 2, 3, 4, 5, 6, 7, 8}, at::kInt),
                                      .cu_seqlens = at::tensor({0, 3, 5, 8}, at::kInt),
                                      .positions = at::tensor({0, 1, 5, 6}, at::kInt),
                                      .spec = {.kind = PayloadKind::kTopK, .top_k = 4}};
  const auto questions = questions_of(request, kVocab);
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(questions[0].positions, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(questions[1].token_ids, (std::vector<int32_t>{6, 7, 8}));
  EXPECT_EQ(questions[1].positions, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(questions[1].top_k, 4);
}

}  // namespace
}  // namespace retort::engines
