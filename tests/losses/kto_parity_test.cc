// The losses over judged completions, gradients and metrics, against TRL 1.16.0's KTOTrainer
// (trl_kto.py), from hidden states to the gradient of hidden states and head; then wrong formulas
// against the same numbers.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "recipes/losses/kto.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/trl_fixtures.h"

namespace retort::losses::kto {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int64_t kRows = 6;
constexpr int64_t kDesirable = 4;

const at::Tensor& golden(const std::string& name) { return trl_goldens().tensor(name); }

// "own" or "other" completions: position t predicts token t + 1.
struct Completions {
  explicit Completions(const std::string& of) : name("kto." + of + ".") {}
  at::Tensor before(const std::string& what) const {
    return packing.rows(golden(name + what).narrow(1, 0, last));
  }
  at::Tensor log_probs(const at::Tensor& hidden, const at::Tensor& weight) const {
    const at::Tensor targets = packing.rows(golden(name + "ids").narrow(1, 1, last)).to(at::kLong);
    return packing.sums(
        linear_log_probs(hidden, weight, {}, targets, {.chunk_tokens = 7}).log_probs);
  }
  // Of the policy ("hidden") or the reference ("reference"), as goldens have them.
  at::Tensor log_probs(const std::string& what) const {
    return log_probs(before(what), golden("kto.weight"));
  }

  std::string name;
  int64_t last = golden(name + "mask").size(1) - 1;
  Packing packing{golden(name + "mask").narrow(1, 1, last)};
};

std::vector<bool> labels() {
  std::vector<bool> desirable;
  for (int64_t i = 0; i < kRows; ++i)
    desirable.push_back(golden("kto.desirable")[i].item<double>() != 0);
  return desirable;
}

at::Tensor log_ratios(const Completions& completions) {
  return completions.log_probs("hidden") - completions.log_probs("reference");
}

// z of the case. Flipped cases have policy and reference in each other's place.
double kl_of(const TrlRecord& c) {
  const double sum = log_ratios(Completions("other")).sum().item<double>();
  return kl_estimate(c.number("flipped") != 0 ? -sum : sum, kRows);
}

struct Measured {
  double loss = 0;
  at::Tensor dh, dw;  // of the whole [B, L, H] and of the head
  KtoResult result;
};

// The loss of the rows as the one global batch.
Measured run(const KtoLossOptions& options, double kl,
             const std::vector<bool>& desirable = labels()) {
  const Completions own("own");
  const at::Tensor hidden = own.before("hidden").requires_grad_();
  const at::Tensor weight = golden("kto.weight").clone().requires_grad_();
  Measured measured;
  measured.result = kto_loss({.policy = own.log_probs(hidden, weight),
                              .reference = own.log_probs("reference"),
                              .desirable = desirable,
                              .kl = kl},
                             options);
  const at::Tensor loss = measured.result.loss_sum / measured.result.count;
  loss.backward();
  measured.loss = loss.item<double>();
  measured.dh = at::constant_pad_nd(own.packing.padded(hidden.grad()), {0, 0, 0, 1});
  measured.dw = weight.grad();
  return measured;
}

KtoLossOptions options_of(const TrlRecord& c) {
  return {.loss_type = parse_enum<KtoLoss>(c.text("loss_type")),
          .beta = c.number("beta"),
          .desirable_weight = c.number("desirable_weight"),
          .undesirable_weight = c.number("undesirable_weight")};
}

double kl_for(const TrlRecord& c) { return needs_kl(options_of(c)) ? kl_of(c) : 0; }

void expect_near(double got, double expected, const char* what, double tolerance = kTolerance) {
  EXPECT_NEAR(got, expected, tolerance * std::max(std::abs(expected), 1e-3)) << what;
}

TEST(KtoParity, EveryLossOfTrl) {
  const auto cases = trl_goldens().of_kind("kto");
  ASSERT_GE(cases.size(), 10u);
  std::set<KtoLoss> covered;
  for (const TrlRecord& c : cases) {
    SCOPED_TRACE(c.name + " " + c.text("loss_type"));
    const KtoLossOptions options = options_of(c);
    covered.insert(options.loss_type);
    const double kl = kl_for(c);
    expect_near(kl, c.number("kl"), "kl");

    const Measured got = run(options, kl);
    expect_near(got.loss, c.number("loss"), "loss");
    expect_near(got.loss, c.number("loss32"), "loss in float32", 2 * kTolerance);
    EXPECT_LT(relative_difference(got.dh, golden(c.name + ".dh")), kTolerance);
    EXPECT_LT(relative_difference(got.dw, golden(c.name + ".dw")), kTolerance);

    const KtoResult& r = got.result;
    ASSERT_EQ(r.count, kRows);
    ASSERT_EQ(r.chosen.count, kDesirable);
    ASSERT_EQ(r.rejected.count, kRows - kDesirable);
    const auto mean = [](double sum, const KtoResult::Side& side) {
      return sum / static_cast<double>(side.count);
    };
    expect_near(mean(r.chosen.rewards_sum, r.chosen), c.number("rewards/chosen"), "rewards/chosen");
    expect_near(mean(r.rejected.rewards_sum, r.rejected), c.number("rewards/rejected"),
                "rewards/rejected");
    expect_near(mean(r.chosen.logps_sum, r.chosen), c.number("logps/chosen"), "logps/chosen");
    expect_near(mean(r.rejected.logps_sum, r.rejected), c.number("logps/rejected"),
                "logps/rejected");
  }
  EXPECT_EQ(covered.size(), EnumNames<KtoLoss>::values.size());
}

// ---- wrong formulas must not pass ----

// The case of this loss with z above 0 (kto), or that with other weights.
const TrlRecord& case_of(const std::string& loss_type, bool weighted = false,
                         bool flipped = false) {
  for (const TrlRecord& c : trl_goldens().records)
    if (c.kind == "kto" && c.text("loss_type") == loss_type && c.number("beta") == 0.8 &&
        (c.number("desirable_weight") != 1) == weighted && (c.number("flipped") != 0) == flipped)
      return c;
  throw std::runtime_error("no such case: " + loss_type);
}

void expect_detected(const TrlRecord& truth, const Measured& wrong, const char* what) {
  EXPECT_GT(std::abs(wrong.loss - truth.number("loss")), 100 * kTolerance * truth.number("loss"))
      << what;
  EXPECT_GT(relative_difference(wrong.dh, golden(truth.name + ".dh")), 100 * kTolerance) << what;
}

TEST(KtoMutation, AnotherEstimateOfTheDivergenceIsDetected) {
  const TrlRecord& c = case_of("kto");
  const KtoLossOptions options = options_of(c);
  const at::Tensor other = log_ratios(Completions("other"));
  const double sum = other.sum().item<double>();
  expect_detected(c, run(options, 0), "left out");
  expect_detected(c, run(options, kl_estimate(sum, 1)), "the sum");
  expect_detected(c, run(options, kl_estimate(sum, static_cast<double>(kDesirable))),
                  "divided by the desirable rows");
  expect_detected(c, run(options, kl_estimate(other.narrow(0, 0, 3).sum().item<double>(), 3)),
                  "of half the batch");
  expect_detected(c,
                  run(options, kl_estimate(other.clamp_min(0).sum().item<double>(),
                                           static_cast<double>(kRows))),
                  "clamped before the mean");
  const double own = log_ratios(Completions("own")).sum().item<double>();
  expect_detected(c, run(options, kl_estimate(own, static_cast<double>(kRows))),
                  "of the own completions");
}

TEST(KtoMutation, ANegativeEstimateIsDetected) {
  const TrlRecord& c = case_of("kto", false, true);
  EXPECT_EQ(kl_of(c), 0);
  // What kto_loss refuses, as a shift of the policy: s - z with z below 0.
  const double mean = -log_ratios(Completions("other")).mean().item<double>();
  ASSERT_LT(mean, -0.1);
  const Completions own("own");
  const KtoResult wrong = kto_loss({.policy = own.log_probs("hidden") - mean,
                                    .reference = own.log_probs("reference"),
                                    .desirable = labels()},
                                   options_of(c));
  EXPECT_GT(std::abs(wrong.loss_sum.item<double>() / kRows - c.number("loss")), 1e-3);
}

TEST(KtoMutation, SwappedLabelsAndWeightsAreDetected) {
  const TrlRecord& c = case_of("kto", true);
  const KtoLossOptions options = options_of(c);
  const double kl = kl_of(c);
  std::vector<bool> reversed = labels();
  reversed.flip();
  expect_detected(c, run(options, kl, reversed), "labels");
  expect_detected(c, run({.beta = options.beta}, kl), "no weights");
  expect_detected(c,
                  run({.beta = options.beta,
                       .desirable_weight = options.undesirable_weight,
                       .undesirable_weight = options.desirable_weight},
                      kl),
                  "weights of the other label");
}

TEST(KtoMutation, TheOtherLossIsDetected) {
  const KtoLossOptions apo{.loss_type = KtoLoss::kApoZeroUnpaired, .beta = 0.8};
  const KtoLossOptions kto{.loss_type = KtoLoss::kKto, .beta = 0.8};
  expect_detected(case_of("kto"), run(apo, 0), "apo_zero_unpaired for kto");
  expect_detected(case_of("apo_zero_unpaired"), run(kto, kl_of(case_of("kto"))),
                  "kto for apo_zero_unpaired");
}

TEST(KtoMutation, AnotherBetaAndAWrongCountAreDetected) {
  const TrlRecord& c = case_of("kto");
  expect_detected(c, run({.beta = 0.81}, kl_of(c)), "beta");
  const double sum = run({.beta = 0.8}, kl_of(c)).result.loss_sum.item<double>();
  const double truth = c.number("loss");
  EXPECT_NEAR(sum / kRows, truth, kTolerance * truth);
  EXPECT_GT(std::abs(sum / kDesirable - truth), 0.01);
}

}  // namespace
}  // namespace retort::losses::kto
