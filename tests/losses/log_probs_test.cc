// linear_log_probs against autograd over whole matrices, its edges, and what it allocates.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/peak_allocation.h"
#include "tests/support/thrown.h"

namespace retort::losses {
namespace {

at::Tensor leaf(const at::Tensor& t, at::ScalarType dtype = at::kFloat) {
  return t.defined() ? t.detach().to(dtype, false, true).requires_grad_() : at::Tensor();
}

// Any per-row weights: what a loss over sequences sends back.
at::Tensor row_weights(int64_t rows) { return at::sin(at::arange(rows, at::kFloat) + 1); }
at::Tensor entropy_weights(int64_t rows) { return at::sin(at::arange(rows, at::kFloat) * 2 + 2); }

struct Columns {
  at::Tensor log_probs, entropy, dh, dw, db;
};

Columns textbook(const Problem& p, double temperature, bool entropy_gradient = false) {
  const at::Tensor h = leaf(p.hidden, at::kDouble), w = leaf(p.weight, at::kDouble),
                   b = leaf(p.bias, at::kDouble);
  at::Tensor logits = at::mm(h, w.t());
  if (b.defined()) logits = logits + b;
  const at::Tensor all = at::log_softmax(logits / temperature, -1);
  const at::Tensor picked = all.gather(1, p.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(all.exp() * all).sum(-1);
  at::Tensor loss = (picked * row_weights(h.size(0))).sum();
  if (entropy_gradient) loss = loss + (entropy * entropy_weights(h.size(0))).sum();
  loss.backward();
  return {picked.detach(), entropy.detach(), h.grad(), w.grad(),
          b.defined() ? b.grad() : at::Tensor()};
}

Columns chunked(const Problem& p, const LogProbsOptions& options) {
  const at::Tensor h = leaf(p.hidden), w = leaf(p.weight), b = leaf(p.bias);
  const LogProbs got = linear_log_probs(h, w, b, p.targets, options);
  EXPECT_TRUE(got.log_probs.requires_grad());
  EXPECT_EQ(got.entropy.defined(), options.entropy);
  at::Tensor loss = (got.log_probs * row_weights(h.size(0))).sum();
  if (options.entropy_gradient) loss = loss + (got.entropy * entropy_weights(h.size(0))).sum();
  loss.backward();
  return {got.log_probs.detach(), options.entropy ? got.entropy.detach() : at::Tensor(), h.grad(),
          w.grad(), b.defined() ? b.grad() : at::Tensor()};
}

void expect_close(const Columns& got, const Columns& expected) {
  EXPECT_LT(relative_difference(got.log_probs, expected.log_probs), 1e-6);
  EXPECT_LT(relative_difference(got.entropy, expected.entropy), 1e-6);
  EXPECT_LT(relative_difference(got.dh, expected.dh), 2e-6);
  EXPECT_LT(relative_difference(got.dw, expected.dw), 2e-6);
  if (expected.db.defined()) {
    EXPECT_LT(relative_difference(got.db, expected.db), 2e-6);
  }
}

// Chunk sizes, and what may be kept: of 37 rows of 131 ids none, two chunks of eight, all.
struct Way {
  int64_t chunk_tokens, kept_bytes;
};
constexpr Way kWays[] = {{0, 0},        {1, 0},       {8, 0}, {8, 2 * 8 * 131 * 4},
                         {8, 64 << 20}, {0, 64 << 20}};

TEST(LogProbs, ValuesAndGradientsOfEveryTemperatureAndChunk) {
  for (bool bias : {false, true})
    for (double temperature : {1.0, 0.6, 2.5}) {
      const Problem p = random_problem({.rows = 37,
                                        .vocab = 131,
                                        .width = 12,
                                        .teacher_vocab = 1,
                                        .teacher_width = 1,
                                        .bias = bias},
                                       5);

      // The entropy's gradient is a part that shows.
      const Columns expected = textbook(p, temperature);
      const Columns with_entropy = textbook(p, temperature, true);
      EXPECT_GT(relative_difference(with_entropy.dh, expected.dh), 0.1);

      // Without it and with it.
      for (const auto& [chunk, kept] : kWays) {
        SCOPED_TRACE(std::to_string(temperature) + " " + std::to_string(chunk) + " " +
                     std::to_string(kept));
        expect_close(chunked(p, {.temperature = temperature,
                                 .entropy = true,
                                 .chunk_tokens = chunk,
                                 .kept_bytes = kept}),
                     expected);
        expect_close(chunked(p, {.temperature = temperature,
                                 .entropy = true,
                                 .entropy_gradient = true,
                                 .chunk_tokens = chunk,
                                 .kept_bytes = kept}),
                     with_entropy);
      }
    }
}

// Ids that are never drawn have the logit -inf, and no part in the entropy.
TEST(LogProbs, ExcludedIdsHaveNoPartInTheEntropysGradient) {
  Problem p = random_problem(
      {.rows = 9, .vocab = 21, .width = 12, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
      5);
  p.targets = p.targets % 16;
  const LogProbsOptions options{.entropy = true, .entropy_gradient = true};
  Problem whole = p;
  whole.weight = p.weight.narrow(0, 0, 16).clone();
  whole.bias = p.bias.narrow(0, 0, 16).clone();
  p.bias.narrow(0, 16, 5).fill_(-INFINITY);
  const Columns got = chunked(p, options);
  const Columns expected = textbook(whole, 1.0, true);
  EXPECT_LT(relative_difference(got.dh, expected.dh), 2e-6);
  EXPECT_LT(relative_difference(got.dw.narrow(0, 0, 16), expected.dw), 2e-6);
  EXPECT_EQ(got.dw.narrow(0, 16, 5).abs().max().item<float>(), 0);
}

// Products that are large enough for oneDNN, in chunks of several sizes.
TEST(LogProbs, LargeHeads) {
  const Problem p = random_problem({.rows = 301,
                                    .vocab = 1031,
                                    .width = 48,
                                    .teacher_vocab = 1,
                                    .teacher_width = 1,
                                    .bias = true},
                                   5);
  const Columns expected = textbook(p, 0.6);
  for (const auto& [chunk, kept] : {Way{128, 0}, Way{128, 128 * 1031 * 4}, Way{0, 64 << 20}})
    expect_close(
        chunked(p,
                {.temperature = 0.6, .entropy = true, .chunk_tokens = chunk, .kept_bytes = kept}),
        expected);
}

TEST(LogProbs, MutationsAreDetected) {
  const Problem p = random_problem(
      {.rows = 37, .vocab = 131, .width = 12, .teacher_vocab = 1, .teacher_width = 1}, 5);
  const Columns truth = textbook(p, 0.6), wrong = chunked(p, {.temperature = 1.0});
  EXPECT_GT(relative_difference(wrong.log_probs, truth.log_probs), 1e-2);
  EXPECT_GT(relative_difference(wrong.dh, truth.dh), 1e-2);
  EXPECT_GT(relative_difference(wrong.dh / 0.6, truth.dh), 1e-2);
}

TEST(LogProbs, HalfPrecisionInputs) {
  Problem p = random_problem(
      {.rows = 20, .vocab = 67, .width = 16, .teacher_vocab = 1, .teacher_width = 1}, 6);
  p.hidden = p.hidden.to(at::kBFloat16);
  p.weight = p.weight.to(at::kBFloat16);
  const at::Tensor h = leaf(p.hidden, at::kBFloat16), w = leaf(p.weight, at::kBFloat16);
  const LogProbs got = linear_log_probs(h, w, {}, p.targets);
  (got.log_probs * row_weights(20)).sum().backward();
  const Columns expected = textbook(p, 1.0);  // of the same rounded numbers
  EXPECT_EQ(got.log_probs.scalar_type(), at::kFloat);
  EXPECT_LT(relative_difference(got.log_probs, expected.log_probs), 1e-6);
  EXPECT_EQ(h.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
  EXPECT_LT(relative_difference(h.grad(), expected.dh), 4e-3);
  EXPECT_LT(relative_difference(w.grad(), expected.dw), 4e-3);
}

TEST(LogProbs, OnlyWhatRequiresGradGetsOne) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 1, .teacher_width = 1}, 7);
  const at::Tensor w = leaf(p.weight);
  linear_log_probs(p.hidden, w, {}, p.targets).log_probs.sum().backward();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(linear_log_probs(p.hidden, p.weight, {}, p.targets).log_probs.requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(linear_log_probs(p.hidden, w, {}, p.targets).log_probs.requires_grad());
}

TEST(LogProbs, AWholeVocabularyIsTheWeightsRows) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 1, .teacher_width = 1}, 7);
  EXPECT_TRUE(
      at::equal(linear_log_probs(p.hidden, p.weight, {}, p.targets, {}, {nullptr, 0, 31}).log_probs,
                linear_log_probs(p.hidden, p.weight, {}, p.targets).log_probs));
  EXPECT_THROW(linear_log_probs(p.hidden, p.weight, {}, p.targets, {}, {nullptr, 0, 62}), Error);
  EXPECT_THROW(linear_log_probs(p.hidden, p.weight, {}, p.targets, {}, {nullptr, 1, 32}), Error);
}

TEST(LogProbs, NoRowsStillReachTheInputs) {
  const at::Tensor h = at::empty({0, 6}, at::kFloat).requires_grad_(),
                   w = at::randn({31, 6}).requires_grad_(), b = at::zeros({31}).requires_grad_();
  const LogProbs got = linear_log_probs(h, w, b, at::empty({0}, at::kLong), {.entropy = true});
  EXPECT_EQ(got.entropy.size(0), 0);
  got.log_probs.sum().backward();
  EXPECT_EQ(h.grad().sizes(), h.sizes());
  EXPECT_EQ(w.grad().abs().sum().item<double>(), 0);
  EXPECT_EQ(b.grad().abs().sum().item<double>(), 0);
}

TEST(LogProbs, BackwardTwiceButNotTwiceDifferentiable) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 1, .teacher_width = 1}, 8);
  for (const int64_t kept : {0, 64 << 20}) {
    const at::Tensor w = leaf(p.weight);
    const at::Tensor sum =
        linear_log_probs(p.hidden, w, {}, p.targets, {.kept_bytes = kept}).log_probs.sum();
    sum.backward({}, /*retain_graph=*/true);
    const at::Tensor once = w.grad().clone();
    sum.backward({}, /*retain_graph=*/true);
    EXPECT_LT(relative_difference(w.grad(), 2 * once), 1e-7);
    EXPECT_THROW(sum.backward({}, true, /*create_graph=*/true), Error);
  }
}

TEST(LogProbs, AWeightChangedBeforeBackwardIsRefused) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 1, .teacher_width = 1}, 8);
  const at::Tensor h = leaf(p.hidden), w = p.weight.clone();
  const at::Tensor sum = linear_log_probs(h, w, {}, p.targets).log_probs.sum();
  w.add_(1);
  EXPECT_THROW(sum.backward(), c10::Error);
}

TEST(LogProbs, Refusals) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 1, .teacher_width = 1}, 9);
  const auto expect_refused = [&](const at::Tensor& targets, const LogProbsOptions& options) {
    EXPECT_EQ(test::code_of([&] { linear_log_probs(p.hidden, p.weight, {}, targets, options); }),
              ErrorCode::kInvalidArgument);
  };
  expect_refused(p.targets, {.temperature = 0});
  expect_refused(p.targets, {.temperature = INFINITY});
  expect_refused(p.targets, {.chunk_tokens = -3});
  expect_refused(p.targets, {.kept_bytes = -1});
  expect_refused(p.targets + 31, {});
  expect_refused(p.targets.to(at::kInt), {});
}

// ---- memory ----

constexpr int64_t kRows = 2048;
constexpr int64_t kVocab = 6400;
constexpr int64_t kWidth = 32;
constexpr int64_t kMatrixBytes = kRows * kVocab * 4;

TEST(LogProbsMemory, AsItsHeaderSays) {
  const Problem p = random_problem(
      {.rows = kRows, .vocab = kVocab, .width = kWidth, .teacher_vocab = 1, .teacher_width = 1},
      41);
  const at::Tensor h = leaf(p.hidden);
  const at::Tensor w = leaf(p.weight);
  constexpr int64_t kChunk = 256;
  constexpr int64_t kSlack = 1 << 17;
  constexpr int64_t kLogits = kChunk * kVocab * 4;

  // Forward and backward each have a chunk of logits, besides what is kept from one to the other.
  for (const int64_t kept : {int64_t{0}, 3 * kLogits}) {
    at::Tensor sum;
    {
      const PeakAllocation meter;
      sum = linear_log_probs(h, w, {}, p.targets,
                             {.entropy = true, .chunk_tokens = kChunk, .kept_bytes = kept})
                .log_probs.sum();
      EXPECT_LE(meter.peak_bytes(), kLogits + kRows * 8 + kept + kSlack);
      EXPECT_EQ(meter.largest_bytes(), kLogits);
    }
    {
      const PeakAllocation meter;
      sum.backward();
      EXPECT_LE(meter.peak_bytes(), kLogits + kRows * kWidth * 4 + kVocab * kWidth * 4 + kSlack);
      EXPECT_EQ(meter.largest_bytes(), kLogits);
    }
  }

  // The expression that one would write: the meter sees what it must see.
  {
    const PeakAllocation meter;
    at::log_softmax(at::mm(h, w.t()), -1).gather(1, p.targets.unsqueeze(1)).sum().backward();
    EXPECT_GE(meter.peak_bytes(), 2 * kMatrixBytes);
  }
}

}  // namespace
}  // namespace retort::losses
