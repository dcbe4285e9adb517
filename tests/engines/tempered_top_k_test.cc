// The bounds of the tail against whole distributions whose tail is known.
#include "engines/contract/tempered_top_k.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/random.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using Numbers = std::vector<double>;

// Log-probabilities of a random distribution, falling; `spread` is the deviation of its logits.
Numbers random_distribution(int64_t size, double spread, uint64_t seed) {
  Numbers logits;
  for (int64_t i = 0; i < size; ++i)
    logits.push_back(spread * random_gumbel(seed, static_cast<uint64_t>(i)));
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits)
    sum += std::exp(logit - largest);
  for (double& logit : logits)
    logit -= largest + std::log(sum);
  std::sort(logits.begin(), logits.end(), std::greater<>());
  return logits;
}

// The share of all but the first k at a temperature, and the first k renormalised.
struct Known {
  double tail = 0;
  Numbers log_probs;
};

Known brute_force(const Numbers& raw, int64_t k, double temperature) {
  double head = 0;
  double tail = 0;
  for (size_t i = 0; i < raw.size(); ++i)
    (static_cast<int64_t>(i) < k ? head : tail) += std::exp(raw[i] / temperature);
  Known known{.tail = tail / (head + tail), .log_probs = {}};
  for (int64_t i = 0; i < k; ++i)
    known.log_probs.push_back(raw[static_cast<size_t>(i)] / temperature - std::log(head));
  return known;
}

at::Tensor first(const Numbers& raw, int64_t k) {
  return at::tensor(Numbers(raw.begin(), raw.begin() + k), at::kDouble).reshape({1, k});
}

TEST(TemperedTopK, TheBoundsHoldAndTheHeadIsExact) {
  for (const int64_t vocab : {2, 17, 400, 5000}) {
    for (const double spread : {0.01, 1.0, 4.0}) {
      for (const int64_t k : {int64_t{1}, int64_t{2}, std::min<int64_t>(vocab, 16), vocab}) {
        const Numbers raw = random_distribution(vocab, spread, static_cast<uint64_t>(vocab * k));
        for (const double temperature : {0.3, 0.7, 1.0, 1.5, 2.0, 4.0}) {
          const Known known = brute_force(raw, k, temperature);
          // As an engine sends them: float32, whose rounding the default error covers.
          const TemperedTopK found =
              tempered_top_k(first(raw, k).to(at::kFloat), temperature, vocab);
          const double least = found.least_tail.item<double>();
          const double most = found.most_tail.item<double>();
          EXPECT_LE(least, known.tail + 1e-15) << vocab << " " << k << " " << temperature;
          EXPECT_GE(most, known.tail - 1e-15) << vocab << " " << k << " " << temperature;
          EXPECT_LE(most, 1.0);
          for (int64_t i = 0; i < k; ++i)
            EXPECT_NEAR(found.log_probs[0][i].item<double>(),
                        known.log_probs[static_cast<size_t>(i)], 2e-5);
        }
      }
    }
  }
}

// Where every id of the tail is as probable as the next, one of the bounds is the tail itself.
TEST(TemperedTopK, AUniformTailMeetsItsBound) {
  constexpr int64_t kVocab = 300;
  Numbers raw{std::log(0.5), std::log(0.3)};
  raw.resize(kVocab, std::log(0.2 / (kVocab - 2)));
  for (const double temperature : {0.5, 1.0, 2.0, 3.0}) {
    const double tail = brute_force(raw, 2, temperature).tail;
    const TemperedTopK found = tempered_top_k(first(raw, 2), temperature, kVocab, 0);
    const at::Tensor& bound = temperature >= 1 ? found.most_tail : found.least_tail;
    EXPECT_NEAR(bound.item<double>(), tail, 1e-12) << temperature;
  }
}

// And where it is as gathered as it can be, the other one.
TEST(TemperedTopK, AGatheredTailMeetsItsBound) {
  const Numbers raw{std::log(0.4), std::log(0.2), std::log(0.2), std::log(0.2), -800, -800};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const double tail = brute_force(raw, 2, temperature).tail;
    const TemperedTopK found = tempered_top_k(first(raw, 2), temperature, 6, 0);
    const at::Tensor& bound = temperature >= 1 ? found.least_tail : found.most_tail;
    EXPECT_NEAR(bound.item<double>(), tail, 1e-12) << temperature;
  }
}

TEST(TemperedTopK, AWholeVocabularyHasNoTail) {
  const Numbers raw = random_distribution(50, 2, 1);
  const TemperedTopK found = tempered_top_k(first(raw, 50).to(at::kFloat), 2.0, 50);
  EXPECT_EQ(found.most_tail.item<double>(), 0);
  EXPECT_EQ(found.mean_most_tail(), 0);
  EXPECT_NEAR(found.log_probs.exp().sum().item<double>(), 1, 1e-5);
}

// A tail below the rounding of float32 is still a tail at a high temperature.
TEST(TemperedTopK, RoundingDoesNotHideATail) {
  constexpr int64_t kVocab = 150'000;
  const double tail = 1e-8;
  // Rounded to float32 these two have more mass than 1.
  Numbers raw{std::log(0.55), std::log(0.45 - tail)};
  raw.resize(kVocab, std::log(tail / (kVocab - 2)));
  const double share = brute_force(raw, 2, 2.0).tail;
  ASSERT_GT(share, 0.02);
  const at::Tensor rounded = first(raw, 2).to(at::kFloat);
  ASSERT_GT(rounded.to(at::kDouble).exp().sum().item<double>(), 1);
  EXPECT_GE(tempered_top_k(rounded, 2.0, kVocab).most_tail.item<double>(), share);
}

TEST(TemperedTopK, RefusesWhatCannotBe) {
  const at::Tensor row = at::tensor({-1.0, -2.0}).reshape({1, 2});
  test::expect_refused("temperature", [&] { tempered_top_k(row, 0, 10); });
  test::expect_refused("vocab_rows", [&] { tempered_top_k(row, 1, 1); });
  test::expect_refused("[R, K]", [&] { tempered_top_k(row[0], 1, 10); });
  const auto corrupt = [](const std::string& part, Numbers values) {
    test::expect_error(ErrorCode::kCorrupt, part, [&] {
      const auto k = static_cast<int64_t>(values.size());
      tempered_top_k(at::tensor(values, at::kDouble).reshape({1, k}), 1, 10);
    });
  };
  corrupt("not a number", {-1, std::numeric_limits<double>::quiet_NaN()});
  corrupt("above 0", {0.5, -3});
  corrupt("sum to", {-0.1, -0.2});
}

}  // namespace
}  // namespace retort::engines
