// payload: sampled, from the draw to the loss: the formulas in double precision, and that the
// estimates are unbiased in value and gradient with the variance that theory gives.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/random.h"
#include "recipes/losses/detail/aten_losses.h"
#include "roles/payload/draws.h"
#include "roles/payload/payload.h"
#include "tests/losses/fixtures.h"
#include "tests/support/thrown.h"

namespace retort::losses {
namespace {

using roles::Payload;
using roles::PayloadKind;
using roles::PayloadSpec;

constexpr ProblemSizes kSizes{
    .rows = 5, .vocab = 41, .width = 8, .teacher_vocab = 41, .teacher_width = 6};

PayloadSpec spec_of(int64_t samples, bool replacement, uint64_t seed = 3) {
  return {.kind = PayloadKind::kSampled,
          .num_samples = samples,
          .replacement = replacement,
          .seed = seed};
}

Payload draw(const Problem& p, const PayloadSpec& spec) {
  return roles::make_payload(p.teacher_hidden, p.teacher_weight, spec);
}

TeacherSampled signal_of(const Payload& payload) {
  return {payload.ids, payload.logps, payload.kappa};
}

// The weights w of the drawn ids, float64, by the formula.
at::Tensor weights_of(const TeacherSampled& drawn) {
  const at::Tensor log_q = drawn.logps.to(at::kDouble);
  if (!drawn.kappa.defined()) return at::ones_like(log_q) / static_cast<double>(log_q.size(1));
  const at::Tensor above = log_q - drawn.kappa.to(at::kDouble).unsqueeze(1);
  return log_q.exp() / -at::expm1(-above.exp());
}

// sum over rows of (1 - kd_ratio) CE + kd_ratio * factor * sum_v w (log q - log p), by autograd in
// float64.
struct Formula {
  double loss = 0;
  at::Tensor dh, dw;
};
Formula formula(const Problem& p, const TeacherSampled& drawn, const DivergenceOptions& options) {
  const at::Tensor h = p.hidden.to(at::kDouble).requires_grad_(),
                   w = p.weight.to(at::kDouble).requires_grad_();
  const at::Tensor logits = at::mm(h, w.t());
  const int64_t common = p.common > 0 ? p.common : p.weight.size(0);
  const at::Tensor log_p = at::log_softmax(logits.narrow(1, 0, common) / options.temperature, 1);
  const at::Tensor kd =
      weights_of(drawn) * (drawn.logps.to(at::kDouble) - log_p.gather(1, drawn.ids.to(at::kLong)));
  const at::Tensor ce = -at::log_softmax(logits, 1).gather(1, p.targets.unsqueeze(1));
  const double factor =
      options.scale_by_temperature_squared ? options.temperature * options.temperature : 1.0;
  const at::Tensor loss =
      ce.sum() * (1 - options.kd_ratio) + kd.sum() * (options.kd_ratio * factor);
  loss.backward();
  return {loss.item<double>(), h.grad(), w.grad()};
}

Outcome aten_outcome(const Problem& p, const TeacherSignal& signal,
                     const DivergenceOptions& options) {
  const at::Tensor h = p.hidden.clone().requires_grad_(), w = p.weight.clone().requires_grad_();
  Outcome outcome;
  outcome.result = detail::read(detail::aten_distill(h, w, {}, p.targets, signal, options, {}));
  outcome.loss = outcome.result.loss_sum.item<double>();
  outcome.result.loss_sum.backward();
  outcome.dh = h.grad();
  outcome.dw = w.grad();
  return outcome;
}

TEST(SampledLoss, IsTheFormulaInDoublePrecision) {
  for (const bool replacement : {false, true})
    for (const int64_t samples : {1, 4, 64})
      for (const int64_t common : {0, 30}) {
        Problem p = random_problem(kSizes, 11);
        p.common = common;
        PayloadSpec spec = spec_of(samples, replacement);
        spec.temperature = 1.7;
        spec.common_vocab = common;
        const TeacherSampled drawn = signal_of(draw(p, spec));
        DivergenceOptions options{.temperature = 1.7, .kd_ratio = 0.6, .common_vocab = common};
        options.scale_by_temperature_squared = samples == 4;
        SCOPED_TRACE(std::to_string(samples) + (replacement ? " with" : " without") +
                     " replacement, common " + std::to_string(common));
        const Formula want = formula(p, drawn, options);
        for (const Outcome& got : {distill(p, drawn, options), aten_outcome(p, drawn, options)}) {
          EXPECT_NEAR(got.loss, want.loss, 1e-5 * std::abs(want.loss));
          EXPECT_LT(relative_difference(got.dh, want.dh), 1e-5);
          EXPECT_LT(relative_difference(got.dw, want.dw), 1e-5);
        }
      }
}

// The comparison can fail: with the probabilities as weights, or another kappa.
TEST(SampledLoss, TheFormulaDetectsOtherWeights) {
  const Problem p = random_problem(kSizes, 11);
  const TeacherSampled drawn = signal_of(draw(p, spec_of(4, false)));
  const Outcome got = distill(p, drawn, {});
  for (const double kappa : {-50.0, 1.0}) {
    TeacherSampled other = drawn;
    other.kappa = kappa < 0 ? drawn.kappa + kappa : drawn.kappa + 0.01;
    const Formula want = formula(p, other, {});
    EXPECT_GT(std::abs(got.loss - want.loss), 1e-3 * std::abs(want.loss));
    EXPECT_GT(relative_difference(got.dh, want.dh), 1e-3);
  }
}

TEST(SampledLoss, IsZeroForEqualModelsWithReplacement) {
  const Problem p = self_problem(kSizes, 12);
  const Outcome got = distill(p, signal_of(draw(p, spec_of(6, true))), {});
  EXPECT_NEAR(got.loss, 0, 1e-5);
}

TEST(SampledLoss, OfAllIdsIsForwardKl) {
  const Problem p = random_problem(kSizes, 13);
  const Outcome got = distill(p, signal_of(draw(p, spec_of(41, false))), {}),
                want = distill(p, full_signal(p, 1), {});
  EXPECT_NEAR(got.loss, want.loss, 1e-5 * want.loss);
  EXPECT_LT(relative_difference(got.dh, want.dh), 1e-5);
}

TEST(SampledLoss, RefusesWhatWouldBeBiasedOrCannotBe) {
  const Problem p = random_problem(kSizes, 14);
  const TeacherSampled drawn = signal_of(draw(p, spec_of(4, false)));
  const auto refused = [&](ErrorCode code, const std::string& part, const TeacherSampled& signal,
                           const DivergenceOptions& options) {
    test::expect_error(code, part, [&] { distill(p, signal, options); });
    test::expect_error(code, part, [&] { aten_outcome(p, signal, options); });
  };
  refused(ErrorCode::kInvalidArgument, "forward_kl alone", drawn,
          {.type = DivergenceType::kReverseKl});
  refused(ErrorCode::kInvalidArgument, "forward_kl alone", drawn, {.tail = Tail::kDrop});

  TeacherSampled bad = drawn;
  bad.ids = drawn.ids.clone();
  bad.ids.select(1, 0).fill_(41);
  refused(ErrorCode::kMismatch, "outside the common vocabulary", bad, {});
  bad.ids.copy_(drawn.ids);
  bad.ids.select(1, 1).copy_(bad.ids.select(1, 0));
  refused(ErrorCode::kCorrupt, "stands twice", bad, {});
  bad = drawn;
  bad.logps = drawn.logps.clone();
  bad.logps.select(1, 2).fill_(std::nan(""));
  refused(ErrorCode::kCorrupt, "NaN or infinity", bad, {});
  bad = drawn;
  bad.kappa = drawn.kappa.narrow(0, 0, 2);
  refused(ErrorCode::kMismatch, "kappa must be", bad, {});
}

TEST(Draws, RepeatForASeedAndDifferForAnother) {
  const Problem p = random_problem(kSizes, 15);
  for (const bool replacement : {false, true}) {
    const Payload one = draw(p, spec_of(5, replacement, 8)),
                  same = draw(p, spec_of(5, replacement, 8)),
                  other = draw(p, spec_of(5, replacement, 9));
    EXPECT_TRUE(one.ids.equal(same.ids));
    EXPECT_FALSE(one.ids.equal(other.ids));
    EXPECT_EQ(one.kappa.defined(), !replacement);
    EXPECT_TRUE(replacement || one.kappa.equal(same.kappa));
  }
  EXPECT_NE(roles::draw_seed(1, 2), roles::draw_seed(1, 3));
  EXPECT_NE(roles::draw_seed(1, 2), roles::draw_seed(2, 2));
}

// The ids would be anybody's.
TEST(Draws, OfLogitsThatAreNotFiniteAreRefused) {
  Problem p = random_problem(kSizes, 4);
  p.teacher_hidden[2][1] = std::numeric_limits<float>::quiet_NaN();
  for (const bool replacement : {true, false}) {
    const Error error = test::error_of([&] { draw(p, spec_of(6, replacement)); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_NE(error.message().find("not finite"), std::string::npos) << error.what();
  }
}

TEST(Draws, TakeTheBytesOfTheFormula) {
  const Problem p = random_problem(kSizes, 16);
  for (const bool replacement : {false, true})
    for (const int64_t samples : {3, 64}) {
      const PayloadSpec spec = spec_of(samples, replacement);
      const Payload payload = draw(p, spec);
      int64_t bytes = 0;
      for (const at::Tensor* tensor : payload.row_tensors())
        if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
      EXPECT_EQ(bytes, 5 * roles::payload_bytes_per_row(spec, 6, 41, 4));
      const int64_t drawn = replacement ? samples : std::min<int64_t>(samples, 41);
      EXPECT_EQ(bytes, 5 * (8 * drawn + (replacement ? 0 : 4)));
    }
}

// An estimate's mean over many seeds, against what it should be.
struct Moments {
  double sum = 0, squares = 0;
  int64_t count = 0;
  void add(double value) {
    sum += value;
    squares += value * value;
    ++count;
  }
  double mean() const { return sum / static_cast<double>(count); }
  double variance() const { return squares / static_cast<double>(count) - mean() * mean(); }
  double z(double expected) const {
    return (mean() - expected) / std::sqrt(variance() / static_cast<double>(count));
  }
};

constexpr ProblemSizes kMore{
    .rows = 20, .vocab = 41, .width = 8, .teacher_vocab = 41, .teacher_width = 6};
constexpr int kSeeds = 10'000;
constexpr int kProjections = 20;

// log q - log p of every id, float64 [R, V].
at::Tensor log_ratio(const Problem& p) {
  const auto log_probs = [](const at::Tensor& h, const at::Tensor& w) {
    return at::log_softmax(at::mm(h.to(at::kDouble), w.to(at::kDouble).t()), 1);
  };
  return log_probs(p.teacher_hidden, p.teacher_weight) - log_probs(p.hidden, p.weight);
}

std::vector<at::Tensor> random_directions(const at::Tensor& like) {
  std::vector<at::Tensor> directions;
  for (int i = 0; i < kProjections; ++i) {
    at::Tensor direction = at::empty_like(like);
    float* value = direction.mutable_data_ptr<float>();
    for (int64_t k = 0; k < direction.numel(); ++k)
      value[k] = static_cast<float>(
          random_uniform(5, static_cast<uint64_t>(i), static_cast<uint64_t>(k)) - 0.5);
    directions.push_back(direction);
  }
  return directions;
}

// The variance of the estimate by its theory. With replacement the mean of N independent draws.
// Without, the weights of different ids are uncorrelated (arXiv 1903.06059, of priority sampling),
// so that their variances add up.
double variance_in_theory(const Problem& p, const at::Tensor& ratio,
                          const std::vector<Moments>& weights, bool replacement) {
  if (replacement) {
    const at::Tensor q =
        at::log_softmax(
            at::mm(p.teacher_hidden.to(at::kDouble), p.teacher_weight.to(at::kDouble).t()), 1)
            .exp();
    const at::Tensor mean = (q * ratio).sum(1);
    return ((q * ratio * ratio).sum(1) - mean * mean).sum().item<double>() / 4;
  }
  double theory = 0;
  const double* f = ratio.const_data_ptr<double>();
  for (size_t i = 0; i < weights.size(); ++i)
    theory += f[i] * f[i] * weights[i].variance();
  return theory;
}

class Unbiased : public testing::TestWithParam<bool> {};

TEST_P(Unbiased, InValueAndGradientOverTenThousandSeeds) {
  const bool replacement = GetParam();
  const Problem p = random_problem(kMore, 17);
  const Outcome exact = distill(p, full_signal(p, 1), {});
  const at::Tensor ratio = log_ratio(p);
  const std::vector<at::Tensor> directions = random_directions(exact.dh);

  Moments value, self_normalised;
  std::array<Moments, kProjections> projections;
  std::vector<Moments> weights(static_cast<size_t>(ratio.numel()));
  for (int seed = 0; seed < kSeeds; ++seed) {
    const PayloadSpec spec =
        spec_of(4, replacement, roles::draw_seed(1, static_cast<uint64_t>(seed)));
    const TeacherSampled drawn = signal_of(draw(p, spec));
    const Outcome got = distill(p, drawn, {});
    value.add(got.loss);
    for (int i = 0; i < kProjections; ++i)
      projections[static_cast<size_t>(i)].add(
          (got.dh * directions[static_cast<size_t>(i)]).sum().item<double>());

    // The mutant divides by the weights' sum, row by row.
    const at::Tensor w = weights_of(drawn), f = ratio.gather(1, drawn.ids.to(at::kLong));
    self_normalised.add(((w * f).sum(1) / w.sum(1)).sum().item<double>());
    at::Tensor all = at::zeros_like(ratio);
    all.scatter_add_(1, drawn.ids.to(at::kLong), w);
    const double* weight = all.const_data_ptr<double>();
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i].add(weight[i]);
  }

  EXPECT_LT(std::abs(value.z(exact.loss)), 4);
  double worst = 0;
  for (int i = 0; i < kProjections; ++i) {
    const double expected = (exact.dh * directions[static_cast<size_t>(i)]).sum().item<double>();
    worst = std::max(worst, std::abs(projections[static_cast<size_t>(i)].z(expected)));
  }
  EXPECT_LT(worst, 4);

  const double theory = variance_in_theory(p, ratio, weights, replacement);
  EXPECT_NEAR(value.variance(), theory, 0.07 * theory);
  if (!replacement) {
    EXPECT_GT(std::abs(self_normalised.z(exact.loss)), 10);
  }
  std::printf(
      "%s replacement: z %.2f, worst of 20 projections %.2f, variance %.4f (theory %.4f), "
      "self-normalised z %.1f\n",
      replacement ? "with" : "without", value.z(exact.loss), worst, value.variance(), theory,
      self_normalised.z(exact.loss));
}

INSTANTIATE_TEST_SUITE_P(Draws, Unbiased, testing::Bool(), [](const auto& info) {
  return info.param ? "with_replacement" : "without_replacement";
});

}  // namespace
}  // namespace retort::losses
