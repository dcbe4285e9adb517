// Top-k whose rows name different numbers of ids, as a union of both sides' does: against the
// formula in double precision, on the row kernels and on ATen operators.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "recipes/losses/detail/aten_losses.h"
#include "tests/losses/fixtures.h"

namespace retort::losses {
namespace {

constexpr int64_t kRows = 21, kVocab = 37, kEach = 4;

at::Tensor union_logits(const at::Tensor& hidden, const at::Tensor& weight) {
  return at::mm(hidden.to(at::kDouble), weight.to(at::kDouble).t());
}

// [R, V] bool: both sides' largest.
at::Tensor union_mask(const Problem& p) {
  at::Tensor mask = at::zeros({kRows, kVocab}, at::kBool);
  for (const at::Tensor& logits :
       {union_logits(p.teacher_hidden, p.teacher_weight), union_logits(p.hidden, p.weight)})
    mask.scatter_(1, std::get<1>(at::topk(logits, kEach, 1)), true);
  return mask;
}

TeacherTopK union_signal(const Problem& p, const at::Tensor& mask, double temperature,
                         int64_t width) {
  const double none = -std::numeric_limits<double>::infinity();
  const at::Tensor logps =
      at::log_softmax(union_logits(p.teacher_hidden, p.teacher_weight) / temperature, 1);
  TeacherTopK signal{at::full({kRows, width}, -1, at::kInt),
                     at::full({kRows, width}, none, at::kFloat),
                     at::logsumexp(logps.masked_fill(mask, none), 1).to(at::kFloat), true};
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t v = 0, i = 0; v < kVocab; ++v)
      if (mask[r][v].item<bool>()) {
        signal.ids[r][i] = v;
        signal.logps[r][i++] = logps[r][v].to(at::kFloat);
      }
  return signal;
}

// The divergence over the ids of `mask` and the rest, by autograd in double precision.
struct UnionFormula {
  double value = 0;
  at::Tensor dh;
};
UnionFormula union_formula(const Problem& p, const at::Tensor& mask, const DivergenceOptions& o) {
  const at::Tensor hidden = p.hidden.to(at::kDouble).detach().clone().set_requires_grad(true);
  const auto coarse = [&](const at::Tensor& logits) {
    const at::Tensor probs = at::log_softmax(logits / o.temperature, 1).exp();
    const at::Tensor inside = probs * mask.to(at::kDouble);
    const at::Tensor rest = (probs * mask.logical_not().to(at::kDouble)).sum(1, true);
    return std::pair(inside, rest);
  };
  const auto [q_in, q_rest] = coarse(union_logits(p.teacher_hidden, p.teacher_weight));
  const auto [p_in, p_rest] = coarse(union_logits(hidden, p.weight));
  const auto kl = [](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor safe_a = at::where(a > 0, a, at::ones_like(a));
    const at::Tensor safe_b = at::where(a > 0, b, at::ones_like(b));
    return (a * (safe_a.log() - safe_b.log())).sum();
  };
  const auto both = [&](auto f) { return f(q_in, p_in) + f(q_rest, p_rest); };
  at::Tensor value;
  switch (o.type) {
    case DivergenceType::kReverseKl:
      value = both([&](const at::Tensor& q, const at::Tensor& s) { return kl(s, q); });
      break;
    case DivergenceType::kJsd:
      value = both([&](const at::Tensor& q, const at::Tensor& s) {
        const at::Tensor m = o.beta * q + (1 - o.beta) * s;
        return o.beta * kl(q, m) + (1 - o.beta) * kl(s, m);
      });
      break;
    default:
      if (o.tail == Tail::kRenormalize)
        value = kl(q_in / q_in.sum(1, true), p_in);
      else
        value = both(kl);
  }
  value.backward();
  return {value.item<double>(), hidden.grad()};
}

Outcome union_aten(const Problem& p, const TeacherSignal& signal,
                   const DivergenceOptions& options) {
  const at::Tensor h = p.hidden.detach().clone().set_requires_grad(true);
  Outcome outcome;
  outcome.result =
      detail::read(detail::aten_distill(h, p.weight, {}, p.targets, signal, options, {}));
  outcome.result.loss_sum.backward();
  outcome.dh = h.grad();
  return outcome;
}

TEST(UnionLoss, IsTheFormula) {
  const Problem p = random_problem(
      {.rows = kRows, .vocab = kVocab, .width = 8, .teacher_vocab = kVocab, .teacher_width = 8}, 5);
  const at::Tensor mask = union_mask(p);
  const int64_t least = mask.sum(1).min().item<int64_t>();
  ASSERT_LT(least, 2 * kEach) << "or no row is padded";

  const std::vector<DivergenceOptions> losses{
      {.type = DivergenceType::kForwardKl},
      {.type = DivergenceType::kForwardKl, .tail = Tail::kRenormalize},
      {.type = DivergenceType::kReverseKl},
      {.type = DivergenceType::kJsd, .beta = 0.3},
      {.type = DivergenceType::kReverseKl, .temperature = 1.7}};
  for (const DivergenceOptions& options : losses) {
    const TeacherTopK signal = union_signal(p, mask, options.temperature, 2 * kEach);
    const UnionFormula expected = union_formula(p, mask, options);
    const auto off = [&](const Outcome& got) {
      return std::max(std::abs(got.result.kd_sum - expected.value) / expected.value,
                      relative_difference(got.dh.to(at::kDouble), expected.dh));
    };
    EXPECT_LT(off(distill(p, signal, options)), 1e-5) << enum_name(options.type);
    EXPECT_LT(off(union_aten(p, signal, options)), 1e-5) << enum_name(options.type);

    // What a wrong tail, or the teacher's ids alone, would give.
    TeacherTopK wrong = signal;
    wrong.log_tail = signal.log_tail - 5e-4;
    if (options.tail == Tail::kBucket) {
      EXPECT_GT(off(distill(p, wrong, options)), 1e-5);
    }
    EXPECT_GT(off(distill(p, top_k_signal(p, options.temperature, kEach), options)), 1e-3);
  }
}

// A row may name every id, beside rows that do not: it has no rest.
TEST(UnionLoss, OfAllIdsIsTheWholeDivergence) {
  const Problem p = random_problem(
      {.rows = kRows, .vocab = kVocab, .width = 8, .teacher_vocab = kVocab, .teacher_width = 8}, 6);
  at::Tensor mask = union_mask(p);
  mask.narrow(0, 0, 3).fill_(true);
  for (const DivergenceType type :
       {DivergenceType::kForwardKl, DivergenceType::kReverseKl, DivergenceType::kJsd}) {
    const DivergenceOptions options{.type = type};
    const TeacherTopK signal = union_signal(p, mask, 1.0, kVocab);
    const UnionFormula expected = union_formula(p, mask, options);
    for (const Outcome& got : {distill(p, signal, options), union_aten(p, signal, options)}) {
      EXPECT_NEAR(got.result.kd_sum, expected.value, 1e-5 * expected.value);
      EXPECT_LT(relative_difference(got.dh.to(at::kDouble), expected.dh), 1e-5);
    }
  }
}

TEST(UnionLoss, IdsThatCannotBeAreRefused) {
  const Problem p = random_problem(
      {.rows = kRows, .vocab = kVocab, .width = 8, .teacher_vocab = kVocab, .teacher_width = 8}, 5);
  const TeacherTopK good = union_signal(p, union_mask(p), 1.0, 2 * kEach);
  TeacherTopK twice = good;
  twice.ids = good.ids.clone();
  twice.ids[3][1] = twice.ids[3][0];
  TeacherTopK outside = good;
  outside.ids = good.ids.clone();
  outside.ids[3][1] = kVocab;
  TeacherTopK unsaid = good;
  unsaid.padded = false;
  const auto code = [&](const TeacherTopK& signal, auto f) {
    try {
      f(p, signal, DivergenceOptions{});
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kCancelled;
  };
  for (const auto& f : {&distill, &union_aten}) {
    EXPECT_EQ(code(twice, f), ErrorCode::kCorrupt);
    EXPECT_EQ(code(outside, f), ErrorCode::kMismatch);
    EXPECT_EQ(code(unsaid, f), ErrorCode::kMismatch) << "-1 is no id unless rows are padded";
  }
}

}  // namespace
}  // namespace retort::losses
