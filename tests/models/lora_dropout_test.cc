// Dropout of what an adapter reads: how often, of which elements, and what it does to gradients.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "models/checkpoint/adapter.h"
#include "models/lora/lora_dropout.h"
#include "models/lora/lora_linear.h"
#include "models/ops/shared_prefixes.h"
#include "tests/models/small_model.h"

namespace retort::models {
namespace {

PackedTokens dropout_tokens() { return pack_rows({some_tokens(9, 1), some_tokens(5, 2)}); }

DropoutRows rows_of(const PackedTokens& tokens, double p, uint64_t step = 3) {
  return dropout_rows(tokens, tokens.num_tokens() + 2, p, /*seed=*/7, step);
}

double most(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

// Of 1.5 million elements, five standard errors: the mean of all and of columns, the mean of what
// is left of a constant, and its variance p / (1 - p).
TEST(LoraDropout, DropsTheShareThatIsAskedFor) {
  const PackedTokens tokens = pack_rows({some_tokens(1500, 1)});
  for (const double p : {0.05, 0.5, 0.9}) {
    const DropoutRows rows = dropout_rows(tokens, 1500, p, 7, 3);
    const at::Tensor left = dropped(at::ones({1500, 1000}, at::kDouble), rows, {.module = 4});
    const double error = 5 * std::sqrt(p / (1 - p) / 1.5e6);
    EXPECT_NEAR(left.mean().item<double>(), 1, error) << p;
    EXPECT_NEAR(left.var().item<double>(), p / (1 - p), 10 * error) << p;
    const at::Tensor columns = left.mean(0), of_rows = left.mean(1);
    EXPECT_NEAR(columns.var().item<double>(), p / (1 - p) / 1500, 0.25 * p / (1 - p) / 1500) << p;
    EXPECT_NEAR(of_rows.var().item<double>(), p / (1 - p) / 1000, 0.25 * p / (1 - p) / 1000) << p;
    // Neighbours, which one draw makes, are independent.
    const at::Tensor pairs = (left - 1).view({1500, 500, 2});
    const double together = pairs.select(2, 0).mul(pairs.select(2, 1)).mean().item<double>();
    EXPECT_NEAR(together, 0, 5 * p / (1 - p) / std::sqrt(7.5e5)) << p;
  }
}

TEST(LoraDropout, IsTheSameByOperators) {
  const DropoutRows rows = rows_of(dropout_tokens(), 0.3);
  for (const int64_t column : {0, 5})
    for (const int64_t columns : {1, 6, 33}) {
      const DropoutPlace place{.module = 9, .column = column};
      EXPECT_TRUE(at::equal(dropout_kept(rows, place, columns, at::kCPU),
                            dropout_kept_by_operators(rows, place, columns, at::kCPU)))
          << column << " " << columns;
    }
}

// Ranks that have some columns drop what the whole input has dropped there.
TEST(LoraDropout, IsCutByColumns) {
  const DropoutRows rows = rows_of(dropout_tokens(), 0.3);
  const at::Tensor whole = dropout_kept(rows, {.module = 9}, 10, at::kCPU);
  const at::Tensor first = dropout_kept(rows, {.module = 9, .column = 0}, 5, at::kCPU);
  const at::Tensor second = dropout_kept(rows, {.module = 9, .column = 5}, 5, at::kCPU);
  EXPECT_TRUE(at::equal(at::cat({first, second}, 1), whole));
  EXPECT_FALSE(at::equal(dropout_kept(rows, {.module = 10}, 10, at::kCPU), whole));
  EXPECT_FALSE(at::equal(
      dropout_kept(rows_of(dropout_tokens(), 0.3, 4), {.module = 9}, 10, at::kCPU), whole));
}

// A beginning that is computed once drops what each of its sequences drops.
TEST(LoraDropout, KnowsNoSharing) {
  std::vector<int32_t> one = some_tokens(90, 1), two = one, three = some_tokens(6, 5);
  for (size_t i = 70; i < two.size(); ++i)
    two[i] = (two[i] + 1) % 300;
  const PackedTokens given = pack_rows({one, two, three});
  const SharedPrefixes shared = share_prefixes(given);
  ASSERT_LT(shared.tokens.num_tokens(), given.num_tokens());
  const DropoutRows apart = dropout_rows(given, given.num_tokens(), 0.3, 7, 3);
  const DropoutRows together = dropout_rows(shared.tokens, shared.tokens.num_tokens(), 0.3, 7, 3);
  EXPECT_TRUE(at::equal(together.chosen(shared.rows).keys, apart.keys));
}

// Against the same formula made of operators with the same elements dropped, in fp64; two weights
// share an A.
TEST(LoraDropout, IsTheFormulaWithItsGradients) {
  const auto f64 = at::TensorOptions().dtype(at::kDouble);
  const DropoutRows rows = rows_of(dropout_tokens(), 0.4);
  const int64_t count = rows.keys.numel();
  const double scaling = 1.75;
  const std::vector<at::Tensor> weights{at::randn({6, 5}, f64), at::randn({4, 5}, f64),
                                        at::randn({3, 5}, f64)};
  at::Tensor x = at::randn({count, 5}, f64).set_requires_grad(true);
  std::vector<at::Tensor> leaves{x};
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{3, 5}, {6, 3}, {4, 3}, {2, 5}, {3, 2}})
    leaves.push_back(at::randn(shape, f64).set_requires_grad(true));
  const at::Tensor &a = leaves[1], &other_a = leaves[4];
  const DropoutPlace place{.module = 2}, other_place{.module = 5, .column = 3};

  const auto got = adapted_column_linear(
      x, weights, {},
      {{a, leaves[2], place}, {a, leaves[3], place}, {other_a, leaves[5], other_place}}, scaling,
      {}, rows);
  const auto read = [&](const DropoutPlace& where) {
    return x * dropout_kept(rows, where, 5, at::kCPU).to(at::kDouble) / (1 - 0.4);
  };
  const auto formula = [&](size_t i, const at::Tensor& first, const at::Tensor& second,
                           const DropoutPlace& where) {
    return at::linear(x, weights[i]) + at::mm(at::mm(read(where), first.t()), second.t()) * scaling;
  };
  const std::vector<at::Tensor> want{formula(0, a, leaves[2], place),
                                     formula(1, a, leaves[3], place),
                                     formula(2, other_a, leaves[5], other_place)};

  std::vector<at::Tensor> ups;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(most(got[i] - want[i]), 1e-12) << i;
    ups.push_back(at::randn(want[i].sizes(), f64));
  }
  const auto mine = torch::autograd::grad(got, leaves, ups);
  const auto theirs = torch::autograd::grad(want, leaves, ups);
  for (size_t i = 0; i < mine.size(); ++i)
    EXPECT_LT(most(mine[i] - theirs[i]), 1e-12) << i;
}

Decoder dropping_decoder(double p, uint64_t step) {
  Decoder decoder = Decoder::random(small_config(), 5, at::kFloat);
  attach_new_adapter(decoder, {.r = 4, .lora_alpha = 6, .target_modules = {"all-linear"}}, 11);
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    if (name.ends_with("lora_B.weight"))
      at::Tensor(value).copy_(at::arange(value.numel()).sin().mul(0.05).view(value.sizes()));
  if (p >= 0) decoder.set_adapter_dropout(p, 7);
  decoder.set_dropout_step(step);
  decoder.set_requires_grad(true);
  return decoder;
}

// While it is trained alone, and then the same elements again where a layer is computed again.
TEST(LoraDropout, IsOfTrainingAlone) {
  const PackedTokens tokens = dropout_tokens();
  Decoder decoder = dropping_decoder(0.3, 3);
  const at::Tensor trained = decoder.hidden(tokens).detach();
  const at::Tensor without = dropping_decoder(-1, 3).hidden(tokens).detach();
  EXPECT_GT(most(trained - without), 1e-3);
  EXPECT_GT(most(trained - dropping_decoder(0.3, 4).hidden(tokens).detach()), 1e-3);
  EXPECT_TRUE(at::equal(dropping_decoder(0, 3).hidden(tokens).detach(), without));
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(decoder.hidden(tokens), without));
  }

  std::vector<std::vector<at::Tensor>> gradients;
  for (const bool again : {false, true}) {
    Decoder one = dropping_decoder(0.3, 3);
    one.set_gradient_checkpointing(again);
    one.hidden(wanting(tokens, at::arange(3, 8))).square().sum().backward();
    auto& own = gradients.emplace_back();
    for (const auto& [name, value, shard] : one.trained_parameters())
      own.push_back(value.grad());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  // The rows that are wanted drop what they drop among all.
  EXPECT_LT(most(decoder.hidden(wanting(tokens, at::arange(14))).detach() - trained), 1e-5);
}

}  // namespace
}  // namespace retort::models
