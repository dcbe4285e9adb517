// Draws beside transformers 5.23: log-probabilities that its logits processors leave of ten logits,
// in fp64 after them, and which tokens they leave.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "models/generation/sampler.h"

namespace retort::models {
namespace {

constexpr double kNo = -std::numeric_limits<double>::infinity();
const std::vector<float> kLogits{2.5f, -0.75f, 1.25f, 0.0f, -3.0f, 1.5f, 0.5f, -1.5f, 2.0f, -0.25f};

// Every token that is left and not rare is drawn, with its number, and none that was cut off.
void expect_draws(const SamplingOptions& options, const DrawHistory& history,
                  const std::vector<double>& expected) {
  std::set<int32_t> left;
  for (size_t id = 0; id < expected.size(); ++id)
    if (expected[id] > -5.6) left.insert(static_cast<int32_t>(id));
  SamplerScratch scratch;
  std::set<int32_t> drawn;
  for (uint64_t sample = 0; sample < 4000; ++sample) {
    const Choice choice = choose_token(kLogits.data(), static_cast<int64_t>(kLogits.size()),
                                       options, history, sample, 0, scratch);
    const double wanted = expected[static_cast<size_t>(choice.token)];
    ASSERT_NEAR(choice.sampling_logp, wanted, 1e-5) << choice.token;
    drawn.insert(choice.token);
  }
  EXPECT_TRUE(std::includes(drawn.begin(), drawn.end(), left.begin(), left.end()));
}

// TypicalLogitsWarper, alone and behind the others in transformers' order.
TEST(SamplerParity, Typical) {
  expect_draws({.typical_p = 0.2}, {}, {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, 0, kNo});
  expect_draws({.typical_p = 0.6}, {},
               {-0.8157696, kNo, -2.0657696, kNo, kNo, -1.8157696, kNo, kNo, -1.3157696, kNo});
  expect_draws({.temperature = 0.7, .typical_p = 0.8}, {},
               {-0.5476547, kNo, kNo, kNo, kNo, -1.9762261, kNo, kNo, -1.2619403, kNo});
  expect_draws({.temperature = 1.3, .top_p = 0.95, .top_k = 8, .min_p = 0.05, .typical_p = 0.5}, {},
               {kNo, kNo, -1.3844413, kNo, kNo, -1.1921337, kNo, kNo, -0.8075183, kNo});
}

// MinNewTokensLengthLogitsProcessor with the end tokens 0 and 8, alone, and behind
// RepetitionPenaltyLogitsProcessor over {7, 8, 9} and before TopKLogitsWarper.
TEST(SamplerParity, BarredEnds) {
  const std::vector<int32_t> barred{0, 8};
  const std::vector<int32_t> seen{7, 8, 9};
  const DrawHistory ends{.seen = {}, .generated = {}, .barred = barred};
  expect_draws({}, ends,
               {kNo, -3.2469042, -1.2469042, -2.4969042, -5.4969042, -0.9969042, -1.9969042,
                -3.9969042, kNo, -2.7469042});
  expect_draws({.top_k = 3, .repetition_penalty = 1.5},
               {.seen = seen, .generated = {}, .barred = barred},
               {kNo, kNo, -1.0139226, kNo, kNo, -0.7639226, -1.7639226, kNo, kNo, kNo});
  // As many as are left, and more.
  for (const int64_t top_k : {8, 9})
    expect_draws({.top_k = top_k}, ends,
                 {kNo, -3.2469042, -1.2469042, -2.4969042, -5.4969042, -0.9969042, -1.9969042,
                  -3.9969042, kNo, -2.7469042});
}

// vLLM's and OpenAI's: mu_j - c_j frequency - [c_j > 0] presence, in fp64.
TEST(SamplerParity, PenaltiesOfWhatWasGenerated) {
  const std::vector<TokenCount> counts{{.id = 0, .count = 3}, {.id = 4, .count = 1}};
  for (const auto& [presence, frequency] :
       std::vector<std::pair<double, double>>{{0.8, 0}, {0, 0.5}, {-1.5, 0.25}, {2, -2}}) {
    std::vector<double> expected(kLogits.begin(), kLogits.end());
    expected[0] -= 3 * frequency + presence;
    expected[4] -= frequency + presence;
    double sum = 0;
    for (const double score : expected)
      sum += std::exp(score);
    for (double& score : expected)
      score -= std::log(sum);
    expect_draws({.presence_penalty = presence, .frequency_penalty = frequency},
                 {.seen = {}, .generated = counts, .barred = {}}, expected);
  }
}

// What is reported of the model is without any of them.
TEST(SamplerParity, TheModelsOwnLogProbabilityStays) {
  double sum = 0;
  for (const float logit : kLogits)
    sum += std::exp(static_cast<double>(logit));
  const std::vector<int32_t> barred{0};
  const std::vector<TokenCount> counts{{.id = 8, .count = 1}};
  SamplerScratch scratch;
  for (uint64_t sample = 0; sample < 50; ++sample) {
    const Choice choice = choose_token(
        kLogits.data(), 10, {.temperature = 0.5, .typical_p = 0.9, .presence_penalty = 1},
        {.seen = {}, .generated = counts, .barred = barred}, sample, 0, scratch);
    EXPECT_NEAR(choice.logp, kLogits[static_cast<size_t>(choice.token)] - std::log(sum), 1e-5);
  }
}

}  // namespace
}  // namespace retort::models
