// Policy losses and gradients against TRL 1.16.0's GRPOTrainer with the gradient of each token's
// log-probability: the KL's ratio, divisors after masking, tokens of high entropy. The numbers are
// those that print_policy_1_16.py prints; policy_parity_test.cc has more cases, from hidden states.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "recipes/losses/high_entropy.h"
#include "recipes/losses/policy.h"
#include "tests/losses/fixtures.h"
#include "tests/support/thrown.h"

namespace retort::losses::policy_1_16 {
namespace {

constexpr double kTolerance = 1e-5;

at::Tensor floats(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

// Four completions, of which the third was cut off and has no rows.
PolicyInputs inputs(const PolicyOptions& options) {
  PolicyInputs in;
  in.policy_logps = floats({-2.615f, -0.701f, -1.903f, -1.318f, -1.149f, -1.815f, -0.944f, -0.577f,
                            -2.793f, -2.376f, -0.55f, -1.353f})
                        .requires_grad_();
  in.old_logps = floats({-2.731f, -0.779f, -1.236f, -1.237f, -1.372f, -1.87f, -0.248f, -0.816f,
                         -3.004f, -2.599f, -0.435f, -0.946f});
  if (options.beta > 0)
    in.reference_logps = floats({-2.353f, -1.144f, -1.022f, -0.846f, -0.569f, -1.888f, -0.76f,
                                 -0.606f, -2.916f, -2.934f, -0.782f, -1.898f});
  in.sequence_of_row = at::tensor({0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 3}, at::kLong);
  in.advantages = floats({1, -0.5f, 9, 0.25f});
  in.num_sequences = 4;
  return in;
}

struct Golden {
  std::string name;
  PolicyOptions options;
  double loss, kl;
  std::vector<float> gradient;
};

const PolicyOptions kKl{.beta = 0.5};
PolicyOptions with(PolicyLossType type, ImportanceSamplingLevel level, bool corrected = true) {
  PolicyOptions options{.loss_type = type,
                        .importance_sampling_level = level,
                        .beta = 0.5,
                        .use_bias_correction_kl = corrected};
  if (type == PolicyLossType::kCispo) options.epsilon_high = 1.1;
  return options;
}

std::vector<Golden> goldens() {
  using enum PolicyLossType;
  using enum ImportanceSamplingLevel;

  return {
      {"token",
       with(kDapo, kToken),
       -0.0433065506,
       0.0896119679,
       {-0.105842361f, -0.0701378325f, -0.0616109063f, 0.0202882612f, 0.02187186f, 0.04723617f,
        -0.00382241311f, 0.0544503298f, 0.00632892582f, 0.0290583283f, -0.00995358861f,
        0.00124808286f}},
      {"token_grpo",
       with(kGrpo, kToken),
       -0.120406417,
       0.0896119679,
       {-0.105842361f, -0.0701378325f, -0.0616109063f, 0.0121729567f, 0.013123116f, 0.028341702f,
        -0.00229344787f, 0.0326701979f, 0.00474669436f, 0.0217937463f, -0.00746519146f,
        0.000936062143f}},
      {"sequence",
       with(kDapo, kSequence),
       -0.0480819109,
       0.0983897459,
       {-0.0740680962f, -0.050671242f, -0.113706528f, 0.0185299661f, 0.0112976209f, 0.0451743266f,
        0.0343988509f, 0.0435202938f, -0.0127339412f, -2.04442657e-05f, -0.00901183741f,
        -0.000325702427f}},
      {"sequence_grpo",
       with(kGrpo, kSequence),
       -0.115409878,
       0.0983897459,
       {-0.0740680962f, -0.050671242f, -0.113706528f, 0.0111179796f, 0.00677857255f, 0.027104596f,
        0.0206393106f, 0.0261121763f, -0.0095504559f, -1.53331993e-05f, -0.00675887806f,
        -0.00024427682f}},
      {"cispo",
       with(kCispo, kToken),
       0.347231166,
       0.0896119679,
       {-0.103926038f, -0.0701378325f, -0.0616109063f, 0.0202882612f, 0.0156293361f, 0.04723617f,
        0.0169515712f, 0.0473678907f, -0.0165877408f, 0.00614166167f, -0.00995358861f,
        0.00124808286f}},
      {"cispo_sequence",
       with(kCispo, kSequence),
       0.335259765,
       0.0983897459,
       {-0.0740680962f, -0.050671242f, -0.113706528f, 0.0185299661f, 0.0112976209f, 0.0451743266f,
        0.0343988509f, 0.0435202938f, -0.0127339412f, -2.04442657e-05f, -0.00901183741f,
        -0.000325702427f}},
      {"uncorrected",
       with(kDapo, kToken, false),
       -0.0339200892,
       0.108384891,
       {-0.106063262f, -0.0751813552f, -0.101658493f, 0.0132915128f, 0.019324256f, 0.0469558244f,
        -0.00841732596f, 0.054106753f, 0.00482234739f, 0.0178186406f, -0.00994288314f,
        0.00363900506f}},
  };
}

// Of all tokens, as TRL's trainer is given them.
const std::vector<float> kEntropies{0.394f, 0.473f, 1.969f, 1.771f, 1.411f, 1.437f,
                                    0.912f, 0.347f, 0.532f, 1.992f, 1.102f, 1.61f};

at::Tensor high_entropy(double quantile) {
  return floats(kEntropies).ge(entropy_threshold(kEntropies, quantile));
}

struct Measured {
  double loss, kl;
  at::Tensor gradient;
};
Measured measure(const PolicyOptions& options, double quantile = 1) {
  PolicyInputs in = inputs(options);
  if (quantile < 1) in.surrogate_mask = high_entropy(quantile);
  const PolicyResult result = policy_loss(in, options);
  const double divisor = policy_divisor(options.loss_type, {.sequences = 4, .tokens = 12});
  (result.loss_sum / divisor).backward();
  return {result.loss_sum.item<double>() / divisor, result.kl_sum / 12, in.policy_logps.grad()};
}

TEST(Policy116, LossesAndGradientsAreTrls) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    const Measured got = measure(golden.options);
    EXPECT_NEAR(got.loss, golden.loss, kTolerance * std::max(0.1, std::abs(golden.loss)));
    EXPECT_NEAR(got.kl, golden.kl, kTolerance * 0.1);
    EXPECT_LT(relative_difference(got.gradient, floats(golden.gradient)), kTolerance);
  }
}

// Only tokens of the highest entropies have a surrogate; the KL and the divisor are of all.
TEST(Policy116, TokensOfHighEntropyAreTrls) {
  const Measured by_token = measure(kKl, 0.4);
  EXPECT_NEAR(by_token.loss, 0.0456151587, kTolerance * 0.1);
  EXPECT_NEAR(by_token.kl, 0.0896119679, kTolerance * 0.1);
  EXPECT_LT(
      relative_difference(by_token.gradient,
                          floats({-0.0122593716f, 0.0199557224f, -0.0616109063f, 0.0202882612f,
                                  -0.0302039972f, 0.04723617f, -0.00382241311f, 0.0015345574f,
                                  0.00632892582f, 0.0290583283f, 0.00861653939f, 0.00124808286f})),
      kTolerance);

  // By sequences a token of low entropy still has its part in the ratio.
  const Measured by_sequence =
      measure({.loss_type = PolicyLossType::kGrpo,
               .importance_sampling_level = ImportanceSamplingLevel::kSequence},
              0.25);
  EXPECT_NEAR(by_sequence.loss, -0.0627296525, kTolerance * 0.1);
  const float first = -0.0237259568f, second = 0.00474664433f, fourth = -0.00382125092f;
  EXPECT_LT(relative_difference(by_sequence.gradient,
                                floats({first, first, first, second, second, second, second, second,
                                        fourth, fourth, fourth, fourth})),
            kTolerance);
  EXPECT_GT(relative_difference(measure(kKl).gradient, by_token.gradient), 0.1);
}

TEST(Policy116, TheShareOfHighEntropyIsTrls) {
  const auto marks = [](double quantile) {
    const at::Tensor high = high_entropy(quantile);
    std::string text;
    for (int64_t i = 0; i < high.numel(); ++i)
      text += high[i].item<bool>() ? '1' : '0';
    return text;
  };
  EXPECT_EQ(marks(0.0), "000000000100");
  EXPECT_EQ(marks(0.1), "001000000100");
  EXPECT_EQ(marks(0.25), "001100000100");
  EXPECT_EQ(marks(0.4), "001101000101");
  EXPECT_EQ(marks(0.5), "001111000101");
  EXPECT_EQ(marks(0.9), "011111101111");
  EXPECT_EQ(marks(1.0), "111111111111");

  // Of none there is no share; what is no number is left out of the quantile.
  EXPECT_EQ(entropy_threshold({}, 0.5), std::numeric_limits<float>::infinity());
  EXPECT_EQ(entropy_threshold({1, NAN, 3}, 0.5), 2);
}

// The comparison can fail: the ratio left out of the KL, or put into it, is seen.
TEST(Policy116, TheOtherKlIsDetected) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    PolicyOptions other = golden.options;
    other.use_bias_correction_kl = !other.use_bias_correction_kl;
    EXPECT_GT(relative_difference(measure(other).gradient, floats(golden.gradient)),
              1000 * kTolerance);
  }
}

// Where all ratios are 1 the value is k3's, and the gradient log(pi / reference) instead of 1 -
// reference / pi.
TEST(Policy116, AtTheRatioOneTheKlsGradientIsTheLogOfTheQuotient) {
  PolicyInputs in = inputs(kKl);
  in.old_logps = at::Tensor();
  in.advantages = at::zeros({4});
  const PolicyResult result = policy_loss(in, kKl);
  result.loss_sum.backward();
  const at::Tensor d = in.reference_logps - in.policy_logps.detach();
  EXPECT_NEAR(result.loss_sum.item<double>(), 0.5 * (d.expm1() - d).sum().item<double>(), 1e-5);
  EXPECT_LT(relative_difference(in.policy_logps.grad(), -0.5 * d), kTolerance);
}

// Weights of a correction between bounds, as TRL's vllm_importance_sampling_clip_min and _clip_max
// have it: moved to them, or 0 (IcePop). At the ratio 1 the loss is - sum(A w).
TEST(Policy116, ACorrectionHasAFloor) {
  using enum SamplingCorrection;
  const double floor = 0.8, cap = 1.3;
  const std::vector<double> differences{-0.4, 0.1,  -0.1, 0.2, 0.5, -0.3,
                                        0,    0.05, -0.5, 0.1, 0,   0.3};
  for (const SamplingCorrection mode :
       {kTokenTruncate, kTokenMask, kSequenceTruncate, kSequenceMask}) {
    SCOPED_TRACE(enum_name(mode));
    const bool whole = mode == kSequenceTruncate || mode == kSequenceMask;
    const bool truncate = mode == kTokenTruncate || mode == kSequenceTruncate;
    PolicyInputs in = inputs({});
    in.old_logps = at::Tensor();
    in.generator_logps = in.policy_logps.detach().clone();
    const int64_t* sequence = in.sequence_of_row.const_data_ptr<int64_t>();
    std::vector<double> of_sequence(4, 0.0);
    for (size_t r = 0; r < differences.size(); ++r) {
      in.generator_logps[static_cast<int64_t>(r)] -= static_cast<float>(differences[r]);
      of_sequence[static_cast<size_t>(sequence[r])] += differences[r];
    }

    double expected = 0;
    int below = 0;
    for (size_t r = 0; r < differences.size(); ++r) {
      const auto s = static_cast<size_t>(sequence[r]);
      double weight = std::exp(whole ? of_sequence[s] : differences[r]);
      const bool outside = weight < floor || weight > cap;
      below += weight < floor;
      if (outside) weight = truncate ? std::clamp(weight, floor, cap) : 0;
      expected -= in.advantages[static_cast<int64_t>(s)].item<double>() * weight;
    }
    const PolicyOptions options{.sampling_correction = mode,
                                .importance_sampling_cap = cap,
                                .importance_sampling_floor = floor};
    EXPECT_GT(below, 0) << "or the test shows nothing";
    EXPECT_NEAR(policy_loss(in, options).loss_sum.item<double>(), expected, kTolerance);
  }
}

TEST(Policy116, AChoiceOfKlNeedsOne) {
  test::expect_refused("use_bias_correction_kl has no effect without a KL",
                       [] { PolicyOptions{.use_bias_correction_kl = false}.validate(); });
}

}  // namespace
}  // namespace retort::losses::policy_1_16
