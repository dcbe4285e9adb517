// linear_distill's jsd against TRL 1.16.0's GKDTrainer.generalized_jsd_loss (make_trl_goldens.py),
// from hidden states.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "recipes/losses/linear_distill.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/trl_fixtures.h"

namespace retort::losses::jsd {
namespace {

constexpr double kTolerance = 1e-5;

struct Jsd {
  double mean;
  at::Tensor dh, dw;
};

Jsd run(const DivergenceOptions& options, bool swapped = false) {
  const TrlGoldens& g = trl_goldens();
  const Packing packing(g.tensor("pairs.mask"));
  const at::Tensor student = packing.rows(g.tensor("pairs.hidden")),
                   teacher = packing.rows(g.tensor("pairs.reference"));
  const at::Tensor h = (swapped ? teacher : student).clone().requires_grad_();
  const at::Tensor w =
      g.tensor(swapped ? "pairs.teacher_weight" : "pairs.weight").clone().requires_grad_();
  const TeacherHidden signal{
      swapped ? student : teacher, g.tensor(swapped ? "pairs.weight" : "pairs.teacher_weight"), {}};
  const DistillResult r =
      linear_distill(h, w, {}, at::zeros({packing.count()}, at::kLong), signal, options);
  (r.loss_sum / r.count).backward();
  return {r.loss_sum.item<double>() / r.count, packing.padded(h.grad()), w.grad()};
}

DivergenceOptions options_of(const TrlRecord& c) {
  return {.type = DivergenceType::kJsd,
          .beta = c.number("beta"),
          .temperature = c.number("temperature")};
}

TEST(TrlJsd, EveryBetaAndTemperature) {
  const auto cases = trl_goldens().of_kind("jsd");
  ASSERT_EQ(cases.size(), 15u);
  for (const TrlRecord& c : cases) {
    SCOPED_TRACE(c.name + " beta " + c.text("beta") + " T " + c.text("temperature"));
    const Jsd got = run(options_of(c));
    EXPECT_NEAR(got.mean, c.number("loss"), kTolerance * c.number("loss"));
    EXPECT_NEAR(got.mean, c.number("loss32"), 2 * kTolerance * c.number("loss"));
    EXPECT_LT(relative_difference(got.dh, trl_goldens().tensor(c.name + ".dh")), kTolerance);
    EXPECT_LT(relative_difference(got.dw, trl_goldens().tensor(c.name + ".dw")), kTolerance);
  }
}

TEST(TrlJsd, AReversedDirectionIsDetected) {
  for (const TrlRecord& c : trl_goldens().of_kind("jsd")) {
    SCOPED_TRACE(c.name + " beta " + c.text("beta"));
    const at::Tensor dh = trl_goldens().tensor(c.name + ".dh");
    if (c.number("beta") != 0.5) {
      DivergenceOptions reversed = options_of(c);
      reversed.beta = 1 - reversed.beta;
      const Jsd wrong = run(reversed);
      EXPECT_GT(relative_difference(wrong.dh, dh), 100 * kTolerance);
      if (c.number("beta") == 0 || c.number("beta") == 1) {
        EXPECT_GT(std::abs(wrong.mean - c.number("loss")), 100 * kTolerance * c.number("loss"));
      }
    }
    // student and teacher exchanged
    EXPECT_GT(relative_difference(run(options_of(c), true).dh, dh), 100 * kTolerance);
  }
}

TEST(TrlJsd, AWrongTemperatureOrCountIsDetected) {
  const Packing packing(trl_goldens().tensor("pairs.mask"));
  for (const TrlRecord& c : trl_goldens().of_kind("jsd")) {
    SCOPED_TRACE(c.name);
    DivergenceOptions options = options_of(c);
    const double sum = run(options).mean * packing.count(),
                 padded = sum / (packing.sequences * packing.length);
    // masked positions counted as zeros
    EXPECT_GT(std::abs(padded - c.number("loss")), 100 * kTolerance * c.number("loss"));
    if (options.temperature == 1) continue;
    options.temperature = 1;
    EXPECT_GT(std::abs(run(options).mean - c.number("loss")), 100 * kTolerance * c.number("loss"));
    options = options_of(c);
    options.scale_by_temperature_squared = true;
    EXPECT_GT(std::abs(run(options).mean - c.number("loss")), 100 * kTolerance * c.number("loss"));
  }
}

}  // namespace
}  // namespace retort::losses::jsd
