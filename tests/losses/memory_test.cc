// The [R, V] matrices never exist whole: LibTorch's allocator is asked.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include "recipes/losses/linear_cross_entropy.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/peak_allocation.h"

namespace retort::losses::memory {
namespace {

constexpr int64_t kRows = 2048, kVocab = 6400, kWidth = 32, kTeacherWidth = 48;
constexpr int64_t kMatrixBytes = kRows * kVocab * 4;

Problem problem() {
  return random_problem({.rows = kRows,
                         .vocab = kVocab,
                         .width = kWidth,
                         .teacher_vocab = kVocab,
                         .teacher_width = kTeacherWidth},
                        41);
}

// The expression that one would write: both logits in one graph.
at::Tensor textbook(const at::Tensor& h, const at::Tensor& w, const Problem& p) {
  const at::Tensor lp = at::log_softmax(at::mm(h, w.t()), -1);
  const at::Tensor lq = at::log_softmax(at::mm(p.teacher_hidden, p.teacher_weight.t()), -1);
  return (lq.exp() * (lq - lp)).sum();
}

TEST(Memory, AFractionOfTheTextbookExpression) {
  const Problem p = problem();
  int64_t textbook_peak = 0;
  int64_t peak = 0;
  int64_t largest = 0;
  at::Tensor expected, got;

  // The textbook's matrices are what the meter must see.
  {
    const at::Tensor h = p.hidden.clone().requires_grad_();
    const at::Tensor w = p.weight.clone().requires_grad_();
    const PeakAllocation meter;
    textbook(h, w, p).backward();
    textbook_peak = meter.peak_bytes();
    EXPECT_GE(meter.largest_bytes(), kMatrixBytes);
    expected = w.grad();
  }
  {
    const at::Tensor h = p.hidden.clone().requires_grad_();
    const at::Tensor w = p.weight.clone().requires_grad_();
    const PeakAllocation meter;
    linear_distill(h, w, {}, p.targets, hidden_signal(p), {}).loss_sum.backward();
    peak = meter.peak_bytes();
    largest = meter.largest_bytes();
    got = w.grad();
  }

  EXPECT_LT(relative_difference(got, expected), 1e-5);
  EXPECT_LE(peak, textbook_peak * 15 / 100) << peak << " of " << textbook_peak;
  EXPECT_LE(largest, 16 << 20);
  // docs/losses.md
  EXPECT_LE(peak, (16 << 20) + 2 * kVocab * kWidth * 4 + 2 * kRows * kWidth * 4 + (1 << 20));
}

TEST(Memory, CrossEntropyAndTopKAsWell) {
  const Problem p = problem();
  const TeacherTopK top = top_k_signal(p, 1, 16);
  const at::Tensor h = p.hidden.clone().requires_grad_(), w = p.weight.clone().requires_grad_();
  const PeakAllocation meter;
  linear_cross_entropy(h, w, {}, p.targets).loss_sum.backward();
  linear_distill(h, w, {}, p.targets, top, {.kd_ratio = 0.5}).loss_sum.backward();
  EXPECT_LE(meter.largest_bytes(), 16 << 20);
  EXPECT_LT(meter.peak_bytes(), kMatrixBytes / 2);
}

TEST(Memory, NoGradientWithoutGradMode) {
  const Problem p = problem();
  const at::Tensor w = p.weight.clone().requires_grad_();
  const at::NoGradGuard no_grad;
  const PeakAllocation meter;
  linear_cross_entropy(p.hidden, w, {}, p.targets, 64);
  // one chunk of logits, no dW (0.8 MB), no dH
  EXPECT_LT(meter.peak_bytes(), 64 * kVocab * 4 + (1 << 17));
}

}  // namespace
}  // namespace retort::losses::memory
