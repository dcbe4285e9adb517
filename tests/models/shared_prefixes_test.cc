// Sequences that begin alike, computed as branches of one, and hidden states of the wanted rows
// alone: against every sequence by itself, and every row.
#include "models/ops/shared_prefixes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/decoder/decoder.h"
#include "tests/models/small_model.h"
#include "tests/support/relative_difference.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::relative_difference;

std::vector<int32_t> after(std::vector<int32_t> prompt, size_t count, uint32_t state) {
  const std::vector<int32_t> more = some_tokens(count, state);
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

// Two groups and a sequence between them. The branches are shorter and longer than one block of
// queries, one is a single token, one nothing but the prompt.
PackedTokens two_groups() {
  const std::vector<int32_t> prompt = some_tokens(45, 1);
  const std::vector<int32_t> other = some_tokens(20, 2);
  return pack_rows({after(prompt, 12, 3), after(prompt, 300, 4), after(prompt, 1, 5), prompt,
                    after(prompt, 129, 6), some_tokens(9, 7), after(other, 30, 8),
                    after(other, 17, 9)});
}

// That gradient of each parameter along `direction` of `rows`, which is taken away again.
std::vector<at::Tensor> gradients(const Decoder& decoder, const at::Tensor& rows,
                                  const at::Tensor& direction) {
  torch::autograd::backward({rows}, {direction.to(rows.scalar_type())});
  std::vector<at::Tensor> found;
  for (const auto& parameter : decoder.parameters()) {
    at::Tensor value = parameter.value;
    found.push_back(value.grad().defined() ? value.grad().clone() : at::Tensor());
    value.mutable_grad() = at::Tensor();
  }
  return found;
}

// Both of them rows of the same hidden states. The gradient of the key bias nearly cancels.
void expect_same(const Decoder& decoder, const at::Tensor& got, const at::Tensor& expected,
                 double tolerance) {
  EXPECT_LT(relative_difference(got, expected), tolerance);
  at::manual_seed(3);
  const at::Tensor direction = at::randn(expected.sizes());
  const std::vector<at::Tensor> mine = gradients(decoder, got, direction);
  const std::vector<at::Tensor> theirs = gradients(decoder, expected, direction);
  const auto parameters = decoder.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    ASSERT_EQ(mine[i].defined(), theirs[i].defined()) << parameters[i].name;
    if (!mine[i].defined()) continue;
    const double factor = parameters[i].name.ends_with("k_proj.bias") ? 1000 : 10;
    EXPECT_LT(relative_difference(mine[i], theirs[i]), factor * tolerance) << parameters[i].name;
  }
}

ModelConfig windowed(int64_t window) {
  ModelConfig config = small_config();
  config.sliding_window = {0, window};
  config.qk_norm = true;
  return config;
}

Decoder trainable(const ModelConfig& config, at::ScalarType dtype) {
  Decoder narrow = Decoder::random(config, 5, at::kFloat);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value, shard] : narrow.parameters())
    tensors.emplace_back(name, value.to(dtype));
  Decoder decoder(config, std::move(tensors));
  decoder.set_requires_grad(true);
  return decoder;
}

// The fused path in fp32, the one of operators in fp64, where nothing but rounding may differ.
TEST(SharedPrefixes, BranchesEqualSequencesOfTheirOwn) {
  const PackedTokens apart = two_groups();
  const SharedPrefixes shared = share_prefixes(apart);
  for (const int64_t window : {0, 8, 50, 150})
    for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 2e-6}, {at::kDouble, 1e-13}}) {
      SCOPED_TRACE(std::to_string(window) + " " + c10::toString(dtype));
      const Decoder decoder = trainable(windowed(window), dtype);
      const at::Tensor expected = decoder.hidden(apart);
      expect_same(decoder, rows_at(decoder.hidden(shared.tokens), shared.rows), expected,
                  tolerance);

      // It would show if a branch saw one token of the prompt less.
      PackedTokens wrong = shared.tokens;
      wrong.forks[0].prefix -= 1;
      EXPECT_GT(relative_difference(rows_at(decoder.hidden(wrong), shared.rows), expected.detach()),
                1e-3);
    }
}

// Scores that are capped are formed block by block, of operators.
TEST(SharedPrefixes, BranchesEqualSequencesOfTheirOwnWithCappedScores) {
  const PackedTokens apart = two_groups();
  const SharedPrefixes shared = share_prefixes(apart);
  for (const int64_t window : {0, 8}) {
    ModelConfig config = windowed(window);
    config.attn_logit_softcapping = 0.5;
    const Decoder decoder = trainable(config, at::kDouble);
    expect_same(decoder, rows_at(decoder.hidden(shared.tokens), shared.rows), decoder.hidden(apart),
                1e-13);
  }
}

// Branches share the keys of their prefix, which one rotation has turned.
TEST(SharedPrefixes, RefusesRotationsThatDependOnTheLength) {
  const PackedTokens apart = two_groups();
  const SharedPrefixes shared = share_prefixes(apart);
  ModelConfig config = windowed(0);
  config.rope.type = "dynamic";
  config.rope.factor = 2.0;
  config.rope.original_max_position_embeddings = 8;
  const Decoder decoder = trainable(config, at::kFloat);
  EXPECT_NO_THROW(decoder.hidden(apart));
  test::expect_error(ErrorCode::kInvalidArgument, "share a prefix",
                     [&] { decoder.hidden(shared.tokens); });

  // Within the limit nothing depends on it.
  config.rope.original_max_position_embeddings = 512;
  const Decoder within = trainable(config, at::kDouble);
  expect_same(within, rows_at(within.hidden(shared.tokens), shared.rows), within.hidden(apart),
              1e-13);
}

TEST(SharedPrefixes, PromptsStandOnce) {
  const PackedTokens apart = two_groups();
  const SharedPrefixes shared = share_prefixes(apart);
  EXPECT_EQ(shared.tokens.cu_seqlens,
            (std::vector<int64_t>{0, 45 + 12 + 300 + 1 + 0 + 129, 496, 496 + 20 + 30 + 17}));
  EXPECT_EQ(shared.tokens.forks.at(0).prefix, 45);
  EXPECT_EQ(shared.tokens.forks.at(0).begins, (std::vector<int64_t>{57, 357, 358, 358}));
  EXPECT_TRUE(shared.tokens.forks.at(1).begins.empty());
  EXPECT_EQ(shared.tokens.forks.at(2).begins, (std::vector<int64_t>{50}));

  // Every token stands where it is said to stand, at its position.
  EXPECT_TRUE(at::equal(rows_at(shared.tokens.input_ids, shared.rows), apart.input_ids));
  EXPECT_TRUE(at::equal(rows_at(shared.tokens.positions, shared.rows), apart.positions));
}

// All sequences begin with the same 20 tokens, groups with more: the groups are what saves most.
TEST(SharedPrefixes, TheDivisionSavesMost) {
  const std::vector<int32_t> system = some_tokens(20, 1);
  const std::vector<int32_t> first = after(system, 30, 2);
  const std::vector<int32_t> second = after(system, 40, 3);
  const SharedPrefixes shared =
      share_prefixes(pack_rows({after(first, 5, 4), after(first, 6, 5), after(first, 7, 6),
                                after(second, 8, 7), after(second, 9, 8), after(system, 3, 9)}));
  EXPECT_EQ(shared.tokens.cu_seqlens,
            (std::vector<int64_t>{0, 50 + 5 + 6 + 7, 68 + 60 + 8 + 9, 68 + 77 + 23}));
}

TEST(SharedPrefixes, FewTokensAreNotShared) {
  const auto least = static_cast<size_t>(kLeastSharedPrefix);
  for (const size_t length : {least - 1, least}) {
    const std::vector<int32_t> prompt = some_tokens(length, 1);
    const PackedTokens apart = pack_rows({after(prompt, 5, 2), after(prompt, 6, 3)});
    const SharedPrefixes shared = share_prefixes(apart);
    EXPECT_EQ(shared.tokens.num_sequences(), length < least ? 2 : 1);
    EXPECT_EQ(shared.tokens.forks.empty(), length < least);
  }
  const SharedPrefixes nothing = share_prefixes(pack_rows({}));
  EXPECT_EQ(nothing.tokens.num_tokens(), 0);
  EXPECT_EQ(nothing.rows.numel(), 0);
}

// A row may be wanted twice, and in any order.
TEST(WantedRows, AreThoseOfAllRows) {
  const PackedTokens tokens = two_groups();
  const at::Tensor wanted = at::tensor({3, 44, 44, 700, 11, 12, 13, 500, 2, 9, 300}, at::kLong);
  for (const bool checkpointing : {false, true})
    for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 2e-6}, {at::kDouble, 1e-13}}) {
      Decoder decoder = trainable(windowed(50), dtype);
      const at::Tensor expected = rows_at(decoder.hidden(tokens), wanted);
      decoder.set_gradient_checkpointing(checkpointing);
      const at::Tensor got = decoder.hidden(wanting(tokens, wanted));
      ASSERT_EQ(got.sizes(), expected.sizes());
      expect_same(decoder, got, expected, tolerance);
    }
}

TEST(WantedRows, MayBeNone) {
  const Decoder decoder = trainable(small_config(), at::kFloat);
  const at::Tensor none = at::zeros({0}, at::kLong);
  const at::Tensor got = decoder.hidden(wanting(two_groups(), none));
  EXPECT_EQ(got.sizes(), (std::vector<int64_t>{0, 128}));
  for (const at::Tensor& gradient : gradients(decoder, got, got.detach())) {
    if (!gradient.defined()) continue;
    EXPECT_EQ(gradient.abs().max().item<double>(), 0);
  }

  const at::Tensor narrow = none.to(at::kInt);
  EXPECT_EQ(test::code_of([&] { decoder.hidden(wanting(two_groups(), narrow)); }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort::models
