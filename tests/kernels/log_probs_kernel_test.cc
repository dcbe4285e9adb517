// kernels/log_probs.cuh against its formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::log_probs {
namespace {

constexpr int64_t kRows = 3;
const std::vector<float> kIncoming{1, -2, 0.5f}, kOfEntropy{0.3f, 0, -1};

std::vector<float> logits_of(int64_t width) {
  std::vector<float> logits = normal(kRows * width, 5, 4);
  if (width > 2) std::fill_n(logits.begin() + width, width / 2, -kInfinity);
  return logits;
}
std::vector<int64_t> targets_of(int64_t width) { return {width / 2, width - 1, 0}; }

struct Forward {
  std::vector<float> log_prob, entropy, max;
  std::vector<double> sum;
};

Forward forward_of(const std::vector<float>& logits, int64_t width, float inv_temperature) {
  const std::vector<int64_t> targets = targets_of(width);
  Forward result;
  std::tie(result.log_prob, result.entropy, result.max, result.sum) = run_in_orders(
      [&](EmulatedKernels& kernels, auto& log_prob, auto& entropy, auto& max, auto& sum) {
        launch(kernels, "retort_log_prob_rows", {.grid_x = kRows, .block = 64}, logits.data(),
               width, targets.data(), inv_temperature, log_prob.data(), entropy.data(), max.data(),
               sum.data());
      },
      poisoned<float>(kRows), poisoned<float>(kRows), poisoned<float>(kRows),
      poisoned<double>(kRows));
  return result;
}

// (g (1[target] - p) - h p (log p + entropy)) / T
double gradient_of(const SoftmaxRow& softmax, int64_t column, int64_t target, size_t row,
                   bool with_entropy, double inv_temperature) {
  const double p = softmax.p[to_size(column)];
  double gradient = kIncoming[row] * ((column == target ? 1 : 0) - p);
  if (with_entropy && p > 0) gradient -= kOfEntropy[row] * p * (std::log(p) + softmax.entropy);
  return gradient * inv_temperature;
}

template <class T>
void check(int64_t width, float inv_temperature, bool with_entropy) {
  const std::vector<float> logits = logits_of(width);
  const std::vector<int64_t> targets = targets_of(width);
  const Forward forward = forward_of(logits, width, inv_temperature);
  const float* entropy = with_entropy ? forward.entropy.data() : nullptr;
  const float* of_entropy = with_entropy ? kOfEntropy.data() : nullptr;
  const auto [got] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x) {
        launch(kernels, kernel_of<T>("log_prob_rows_gradient"), {.grid_x = kRows, .block = 32},
               x.data(), width, targets.data(), int64_t{0}, inv_temperature, forward.max.data(),
               forward.sum.data(), entropy, kIncoming.data(), of_entropy);
      },
      logits);

  for (size_t r = 0; r < to_size(kRows); ++r) {
    const SoftmaxRow softmax(logits.data() + to_int64(r) * width, width, inv_temperature);
    const double target = logits[r * to_size(width) + to_size(targets[r])];
    const double log_prob = (target - softmax.max) * inv_temperature - softmax.log_sum;
    EXPECT_TRUE(is_close(forward.log_prob[r], log_prob, 1e-5, 1e-6)) << width << " " << r;
    EXPECT_NEAR(forward.entropy[r], softmax.entropy, 1e-5) << width << " " << r;
    EXPECT_EQ(forward.max[r], softmax.max);

    const T* row = reinterpret_cast<const T*>(got.data() + to_int64(r) * width);
    for (int64_t i = 0; i < width; ++i) {
      const double expected = gradient_of(softmax, i, targets[r], r, with_entropy, inv_temperature);
      ASSERT_TRUE(is_close(widen(row[i]), expected, 2e-6, kRounding<T>))
          << "width " << width << " row " << r << " column " << i << ": " << widen(row[i])
          << ", not " << expected;
    }
  }
}

TEST(LogProbsKernel, ValuesAndGradients) {
  for (const int64_t width : {1, 2, 31, 33, 128, 1001, 4096}) {
    check<float>(width, 1, true);
    check<Bf16>(width, 0.5f, true);
    check<Bf16>(width, 2, false);
  }
}

TEST(LogProbsKernel, NanSpoilsItsRowAlone) {
  constexpr int64_t kWidth = 100;
  std::vector<float> logits = logits_of(kWidth);
  logits[kWidth + 99] = kNan;
  const Forward forward = forward_of(logits, kWidth, 1);
  for (size_t r = 0; r < to_size(kRows); ++r) {
    EXPECT_EQ(std::isnan(forward.log_prob[r]), r == 1);
    EXPECT_EQ(std::isnan(forward.entropy[r]), r == 1);
  }
}

// The columns [begin, begin + 40) of 100, from the whole row's softmax.
TEST(LogProbsKernel, GradientOfAPartOfTheVocabulary) {
  constexpr int64_t kWidth = 100, kBegin = 30, kPart = 40;
  const std::vector<float> logits = logits_of(kWidth);
  const std::vector<int64_t> targets = targets_of(kWidth);
  const Forward forward = forward_of(logits, kWidth, 1);
  std::vector<float> part;
  for (int64_t r = 0; r < kRows; ++r)
    part.insert(part.end(), logits.begin() + r * kWidth + kBegin,
                logits.begin() + r * kWidth + kBegin + kPart);
  const auto [got] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x) {
        launch(kernels, "retort_log_prob_rows_gradient_f32", {.grid_x = kRows, .block = 32},
               x.data(), kPart, targets.data(), kBegin, 1.0f, forward.max.data(),
               forward.sum.data(), forward.entropy.data(), kIncoming.data(), kOfEntropy.data());
      },
      part);
  for (size_t r = 0; r < to_size(kRows); ++r) {
    const SoftmaxRow softmax(logits.data() + to_int64(r) * kWidth, kWidth);
    for (int64_t i = 0; i < kPart; ++i)
      EXPECT_NEAR(got[r * to_size(kPart) + to_size(i)],
                  gradient_of(softmax, kBegin + i, targets[r], r, true, 1), 2e-6);
  }
}

TEST(LogProbsKernel, NoRows) {
  EmulatedKernels kernels(1);
  std::vector<float> out{kNan};
  double* no_sum = nullptr;
  const int64_t* no_targets = nullptr;
  launch(kernels, "retort_log_prob_rows", {.grid_x = 0}, out.data(), int64_t{1}, no_targets, 1.0f,
         out.data(), out.data(), out.data(), no_sum);
  EXPECT_TRUE(std::isnan(out[0]));
}

}  // namespace
}  // namespace retort::test::log_probs
