// The losses in ATen operators over a whole vocabulary (what an accelerator runs) against the row
// kernels.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "recipes/losses/detail/aten_losses.h"
#include "tests/losses/distill_cases.h"
#include "tests/support/thrown.h"

namespace retort::losses {
namespace {

Outcome aten_path(const Problem& p, const TeacherSignal& signal, const DivergenceOptions& options) {
  const auto leaf = [](const at::Tensor& t) {
    return t.defined() ? t.detach().clone().requires_grad_() : at::Tensor();
  };
  const at::Tensor h = leaf(p.hidden), w = leaf(p.weight), b = leaf(p.bias);
  Outcome outcome;
  outcome.result = detail::read(detail::aten_distill(h, w, b, p.targets, signal, options, {}));
  outcome.loss = outcome.result.loss_sum.item<double>();
  outcome.result.loss_sum.backward();
  outcome.dh = h.grad();
  outcome.dw = w.grad();
  if (b.defined()) outcome.db = b.grad();
  return outcome;
}

TEST(AtenPath, EveryDivergenceTailAndPayload) {
  const DistillCases all = distill_cases();
  double worst = 0;
  for (const DistillCase& c : all.cases) {
    SCOPED_TRACE(c.name);
    const Problem& p = all.problems[c.problem];
    const Outcome expected = distill(p, c.signal, c.options),
                  got = aten_path(p, c.signal, c.options);
    const auto numbers = numbers_of(got);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double value = numbers_of(expected)[i].second;
      EXPECT_NEAR(numbers[i].second, value, 1e-6 * std::abs(value)) << numbers[i].first;
    }
    for (const double d :
         {relative_difference(got.dh, expected.dh), relative_difference(got.dw, expected.dw),
          relative_difference(got.db, expected.db)}) {
      EXPECT_LT(d, c.tolerance);
      if (c.tolerance == 1e-6) worst = std::max(worst, d);
    }
  }
  RecordProperty("worst_gradient", std::to_string(worst));
  std::printf("%zu cases, gradients off by at most %.1e\n", all.cases.size(), worst);
}

// Why DistillCase::tolerance is wider there: against float64 the row kernels are off as much.
TEST(AtenPath, WhereAGradientCancelsBothPathsAreOffAlike) {
  for (const Problem& p : distill_cases().problems) {
    if (p.common > 0) continue;
    const at::Tensor h = p.hidden.to(at::kDouble).requires_grad_();
    const auto log_softmax = [](const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& bias) {
      return at::log_softmax(
          at::addmm(bias.to(at::kDouble), hidden.to(at::kDouble), weight.to(at::kDouble).t()), -1);
    };
    const at::Tensor log_p = log_softmax(h, p.weight, p.bias);
    const at::Tensor q = log_softmax(p.teacher_hidden, p.teacher_weight, p.teacher_bias).exp();
    const double lambda = static_cast<float>(0.7);
    (log_p.exp() * (log_p - ((1 - lambda) * q + lambda * log_p.exp()).log())).sum().backward();
    const DivergenceOptions options{.type = DivergenceType::kSkewedReverseKl, .skew_lambda = 0.7};
    const double kernels = relative_difference(distill(p, hidden_signal(p), options).dh, h.grad());
    const double mine = relative_difference(aten_path(p, hidden_signal(p), options).dh, h.grad());
    std::printf("skewed_reverse_kl, lambda 0.7, off float64: row kernels %.1e, ATen %.1e\n",
                kernels, mine);
    EXPECT_LT(kernels, 3e-6);
    EXPECT_LT(mine, 3e-6);
  }
}

TEST(AtenPath, TeacherEqualsStudentIsZero) {
  const Problem p = self_problem({.rows = 70,
                                  .vocab = 1003,
                                  .width = 24,
                                  .teacher_vocab = 1003,
                                  .teacher_width = 24,
                                  .bias = true},
                                 11);
  for (const auto& [name, type] : EnumNames<DivergenceType>::values) {
    SCOPED_TRACE(std::string(name));
    for (const double temperature : {1.0, 2.5}) {
      const DivergenceOptions options{.type = type, .temperature = temperature};
      EXPECT_LT(std::abs(aten_path(p, hidden_signal(p), options).result.kd_sum) / 70, 1e-7);
      EXPECT_LT(std::abs(aten_path(p, full_signal(p, temperature), options).result.kd_sum) / 70,
                1e-6);
      EXPECT_LT(
          std::abs(aten_path(p, top_k_signal(p, temperature, 64), options).result.kd_sum) / 70,
          1e-6);
    }
  }
}

// Ids that either side excludes altogether.
TEST(AtenPath, ExcludedIds) {
  Problem p = random_problem(
      {.rows = 9, .vocab = 30, .width = 6, .teacher_vocab = 30, .teacher_width = 6, .bias = true},
      12);
  p.targets = p.targets.clamp_max(20);
  p.teacher_bias.narrow(0, 25, 5).fill_(-INFINITY);
  const auto compare = [&](DivergenceType type) {
    SCOPED_TRACE(std::string(enum_name(type)));
    const DivergenceOptions options{.type = type, .kd_ratio = 0.5};
    const Outcome expected = distill(p, hidden_signal(p), options),
                  got = aten_path(p, hidden_signal(p), options);
    ASSERT_TRUE(std::isfinite(expected.loss));
    EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_LT(relative_difference(got.dh, expected.dh), 1e-6);
  };
  using T = DivergenceType;
  for (const T type : {T::kForwardKl, T::kJsd, T::kSkewedKl, T::kSkewedReverseKl, T::kTvd})
    compare(type);
  EXPECT_EQ(aten_path(p, hidden_signal(p), {.type = T::kReverseKl}).loss, INFINITY);
  p.bias.narrow(0, 25, 5).fill_(-INFINITY);  // on both sides
  for (const T type : {T::kJsd, T::kSkewedKl, T::kSkewedReverseKl, T::kTvd})
    compare(type);
}

at::Tensor with_value(const at::Tensor& tensor, int64_t row, int64_t column, double value) {
  at::Tensor copy = tensor.clone();
  copy.select(0, row).select(0, column).fill_(value);
  return copy;
}

// Each has one thing wrong, most of them in one row.
std::vector<TeacherSignal> damaged_signals(const Problem& p) {
  const TeacherTopK top = top_k_signal(p, 1, 4);
  const TeacherFull full = full_signal(p, 1);
  const TeacherHidden hidden = hidden_signal(p);
  const double first = top.ids.select(0, 2).select(0, 0).item<double>();
  at::Tensor tail = top.log_tail.clone();
  tail[4] = NAN;
  return {TeacherTopK{with_value(top.ids, 3, 1, 20), top.logps, top.log_tail},
          TeacherTopK{with_value(top.ids, 5, 0, -1), top.logps, top.log_tail},
          TeacherTopK{with_value(top.ids, 2, 3, first), top.logps, top.log_tail},
          TeacherTopK{top.ids, with_value(top.logps, 1, 2, NAN), top.log_tail},
          TeacherTopK{top.ids, with_value(top.logps, 4, 2, INFINITY), top.log_tail},
          TeacherTopK{top.ids, top.logps + 0.01, top.log_tail + 0.01},
          TeacherTopK{top.ids, top.logps, tail},
          TeacherFull{with_value(full.logps, 2, 19, NAN)},
          TeacherFull{full.logps * 2},
          TeacherHidden{with_value(hidden.hidden, 4, 0, NAN), hidden.weight, {}},
          TeacherHidden{hidden.hidden, with_value(hidden.weight, 7, 0, INFINITY), {}},
          TeacherHidden{hidden.hidden, hidden.weight.narrow(0, 0, 19), {}}};
}

TEST(AtenPath, RefusesTheSameRows) {
  const Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3}, 31);
  const auto error = [&](const TeacherSignal& signal, bool kernels, int64_t chunk) -> std::string {
    const DivergenceOptions options{.chunk_tokens = chunk};
    const std::optional<Error> e = test::thrown([&] {
      if (kernels)
        distill(p, signal, options);
      else
        aten_path(p, signal, options);
    });
    if (!e) return "accepted";
    return std::string(to_string(e->code())) + e->message() +
           (e->context().empty() ? "" : e->context()[0].second);
  };

  const std::vector<TeacherSignal> damaged = damaged_signals(p);
  for (size_t i = 0; i < damaged.size(); ++i)
    for (const int64_t chunk : {0, 2}) {
      const std::string expected = error(damaged[i], true, chunk);
      EXPECT_NE(expected, "accepted") << i;
      EXPECT_EQ(error(damaged[i], false, chunk), expected) << i;
    }
}

TEST(AtenPath, AStudentThatDivergedIsNotHidden) {
  Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3}, 31);
  p.hidden.select(0, 2).select(0, 1).fill_(NAN);
  EXPECT_TRUE(std::isnan(aten_path(p, hidden_signal(p), {}).loss));
  EXPECT_TRUE(std::isnan(aten_path(p, top_k_signal(p, 1, 4), {}).loss));
  EXPECT_TRUE(std::isnan(detail::aten_cross_entropy(p.hidden, p.weight, {}, p.targets, 0, {})
                             .loss_sum.item<double>()));
}

TEST(AtenPath, Dft) {
  const Problem p = random_problem(
      {.rows = 45, .vocab = 131, .width = 12, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
      61);
  const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
  for (const int64_t chunk : {0, 8}) {
    const at::Tensor h = leaf(p.hidden), w = leaf(p.weight), b = leaf(p.bias);
    const at::Tensor h2 = leaf(p.hidden), w2 = leaf(p.weight), b2 = leaf(p.bias);
    const CrossEntropyType type = CrossEntropyType::kDft;
    const CrossEntropyResult expected =
        linear_cross_entropy(h, w, b, p.targets, chunk, {}, 0, type);
    const CrossEntropyResult got =
        detail::read(detail::aten_cross_entropy(h2, w2, b2, p.targets, chunk, {}, 0, type));
    EXPECT_NEAR(got.loss_sum.item<double>(), expected.loss_sum.item<double>(),
                1e-6 * expected.loss_sum.item<double>());
    EXPECT_NEAR(got.entropy_sum, expected.entropy_sum, 1e-6 * expected.entropy_sum);
    EXPECT_EQ(got.num_correct, expected.num_correct);
    expected.loss_sum.backward();
    got.loss_sum.backward();
    EXPECT_LT(relative_difference(h2.grad(), h.grad()), 1e-6);
    EXPECT_LT(relative_difference(w2.grad(), w.grad()), 1e-6);
    EXPECT_LT(relative_difference(b2.grad(), b.grad()), 1e-6);
  }
}

TEST(AtenPath, CrossEntropyAndLogProbabilities) {
  const Problem p = random_problem(
      {.rows = 45, .vocab = 131, .width = 12, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
      61);
  const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
  for (const auto& [chunk, entropy_gradient] :
       {std::pair<int64_t, bool>{0, false}, {8, false}, {8, true}}) {
    const at::Tensor h = leaf(p.hidden);
    const at::Tensor w = leaf(p.weight);
    const at::Tensor b = leaf(p.bias);
    const at::Tensor h2 = leaf(p.hidden);
    const at::Tensor w2 = leaf(p.weight);
    const at::Tensor b2 = leaf(p.bias);

    const CrossEntropyResult expected = linear_cross_entropy(h, w, b, p.targets, chunk);
    const CrossEntropyResult got =
        detail::read(detail::aten_cross_entropy(h2, w2, b2, p.targets, chunk, {}));
    EXPECT_NEAR(got.loss_sum.item<double>(), expected.loss_sum.item<double>(),
                1e-6 * expected.loss_sum.item<double>());
    EXPECT_NEAR(got.entropy_sum, expected.entropy_sum, 1e-6 * expected.entropy_sum);
    EXPECT_EQ(got.num_correct, expected.num_correct);

    const LogProbsOptions options{.temperature = 0.7,
                                  .entropy = true,
                                  .entropy_gradient = entropy_gradient,
                                  .chunk_tokens = chunk};
    const LogProbs rows = linear_log_probs(h, w, b, p.targets, options);
    const LogProbs mine = detail::aten_log_probs(h2, w2, b2, p.targets, options, {});
    EXPECT_LT(relative_difference(mine.log_probs, rows.log_probs), 1e-6);
    EXPECT_LT(relative_difference(mine.entropy, rows.entropy), 1e-6);

    const at::Tensor scale = at::sin(at::arange(45, at::kFloat));
    const double of_entropy = entropy_gradient ? 0.7 : 0;
    const auto sum_of = [&](const LogProbs& both) {
      return (both.log_probs * scale).sum() + of_entropy * (both.entropy * scale.flip(0)).sum();
    };
    (expected.loss_sum + sum_of(rows)).backward();
    (got.loss_sum + sum_of(mine)).backward();
    EXPECT_LT(relative_difference(h2.grad(), h.grad()), 1e-6);
    EXPECT_LT(relative_difference(w2.grad(), w.grad()), 1e-6);
    EXPECT_LT(relative_difference(b2.grad(), b.grad()), 1e-6);
  }
}

}  // namespace
}  // namespace retort::losses
