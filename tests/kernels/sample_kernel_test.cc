// kernels/sample.cuh against its formulas in float64; that its bits are the host's sampler's is a
// matter of its arithmetic, which needs a device to be seen.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::sample {
namespace {

// As SampleRow and SampledToken.
struct Draw {
  uint64_t key;
  double temperature;
  float inverse_temperature, min_p;
  int32_t row, num_ids;
};
struct Token {
  int32_t token;
  float logp, sampling_logp;
  int32_t unused;
};

Draw draw_of(uint64_t key, double temperature, int32_t row = 0, float min_p = 0,
             int32_t num_ids = 0) {
  const float inverse = temperature == 0 ? 0 : static_cast<float>(1 / temperature);
  return {key, temperature, inverse, min_p, row, num_ids};
}

// -log of the uniform number that the race has for an id.
double minus_log_uniform(uint64_t key, int64_t id) {
  uint64_t z = (key ^ static_cast<uint64_t>(id)) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  const uint64_t bits = z ^ (z >> 31);
  return -std::log((static_cast<double>(bits >> 11) + 0.5) * 0x1p-53);
}

Token expected_of(const Draw& draw, const float* x, int64_t vocab_size) {
  const int64_t num_ids = draw.num_ids > 0 ? draw.num_ids : vocab_size;
  const SoftmaxRow all(x, vocab_size), drawn(x, num_ids);
  int64_t token = drawn.first;
  double sampling_logp = 0;
  if (draw.temperature != 0) {
    double total = 0, best = 0;
    token = 0;
    for (int64_t i = 0; i < num_ids; ++i) {
      double weight = std::exp((x[i] - drawn.max) * draw.inverse_temperature);
      if (weight < draw.min_p) weight = 0;
      total += weight;
      const double score = weight / minus_log_uniform(draw.key, i);
      if (score > best) {
        best = score;
        token = i;
      }
    }
    sampling_logp = (x[token] - drawn.max) / draw.temperature - std::log(total);
  }
  return {static_cast<int32_t>(token), static_cast<float>(x[token] - all.max - all.log_sum),
          static_cast<float>(sampling_logp), 0};
}

std::vector<Token> sampled(const std::vector<float>& logits, int64_t vocab_size,
                           const std::vector<Draw>& draws, int64_t block) {
  const auto [tokens] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to) {
        launch(kernels, "retort_sample_rows_f32", {.grid_x = std::ssize(draws), .block = block},
               logits.data(), draws.data(), to.data(), static_cast<int32_t>(vocab_size));
      },
      poisoned<Token>(std::ssize(draws)));
  return tokens;
}

TEST(SampleKernel, DrawsAndLogProbabilities) {
  for (const int64_t vocab_size : {1, 2, 31, 33, 128, 1001}) {
    const std::vector<float> logits = normal(2 * vocab_size, 3, 2);
    std::vector<Draw> draws{draw_of(0, 0), draw_of(0, 0, 1)};
    for (uint64_t key = 1; key < 5; ++key) {
      draws.push_back(draw_of(key * 977, 1, 1));
      draws.push_back(draw_of(key * 977, 0.7, 0, 0.05f));
    }
    if (vocab_size > 30) draws.push_back(draw_of(12, 1.5, 0, 0, 29));
    const std::vector<Token> tokens = sampled(logits, vocab_size, draws, 64);
    for (size_t i = 0; i < draws.size(); ++i) {
      const Token expected =
          expected_of(draws[i], logits.data() + draws[i].row * vocab_size, vocab_size);
      EXPECT_EQ(tokens[i].token, expected.token) << vocab_size << " " << i;
      EXPECT_NEAR(tokens[i].logp, expected.logp, 1e-5) << vocab_size << " " << i;
      EXPECT_NEAR(tokens[i].sampling_logp, expected.sampling_logp, 1e-5) << vocab_size << " " << i;
    }
  }
}

TEST(SampleKernel, FirstOfEqualLogitsWhenGreedy) {
  std::vector<float> logits(300, 0.0f);
  logits[77] = logits[250] = 3;
  EXPECT_EQ(sampled(logits, 300, {draw_of(1, 0)}, 32)[0].token, 77);
}

TEST(SampleKernel, NoTokenFromLogitsThatAreNotFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<float> logits = normal(2 * 100, 1);
    logits[99] = bad;
    const std::vector<Token> tokens =
        sampled(logits, 100, {draw_of(1, 1), draw_of(1, 0), draw_of(1, 1, 1)}, 64);
    EXPECT_EQ(tokens[0].token, -1) << bad;
    EXPECT_EQ(tokens[1].token, -1) << bad;
    EXPECT_GE(tokens[2].token, 0) << bad;
  }
}

}  // namespace
}  // namespace retort::test::sample
