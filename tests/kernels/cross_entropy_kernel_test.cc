// kernels/cross_entropy.cuh against its formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::cross_entropy {
namespace {

constexpr int64_t kRows = 3;

// One plain row; one of which a part is never drawn; one with its largest logit twice.
std::vector<float> logits_of(int64_t width) {
  std::vector<float> logits = normal(kRows * width, 7, 4);
  const auto row = [&](int64_t r) { return logits.begin() + r * width; };
  if (width < 3) return logits;
  std::fill(row(1) + 1, row(1) + width / 2, -kInfinity);
  const float top = *std::max_element(row(2), row(2) + width);
  row(2)[width / 3] = top;
  row(2)[width - 1] = top;
  return logits;
}

std::vector<int64_t> targets_of(int64_t width) { return {width / 2, width - 1, width / 3}; }
const std::vector<float> kWeights{1, 0.5f, 2};

template <class T>
void expect_gradient(const std::vector<float>& got, const std::vector<float>& logits,
                     int64_t width) {
  for (int64_t r = 0; r < kRows; ++r) {
    const SoftmaxRow softmax(logits.data() + r * width, width);
    const T* row = reinterpret_cast<const T*>(got.data() + r * width);
    for (int64_t i = 0; i < width; ++i) {
      const double hit = i == targets_of(width)[to_size(r)] ? 1 : 0;
      const double expected = kWeights[to_size(r)] * (softmax.p[to_size(i)] - hit);
      ASSERT_TRUE(is_close(widen(row[i]), expected, 3e-7, kRounding<T>))
          << "width " << width << " row " << r << " column " << i << ": " << widen(row[i])
          << ", not " << expected;
    }
  }
}

template <class T>
void check_rows(int64_t width, int64_t block, int32_t kept) {
  const std::vector<float> logits = logits_of(width);
  const std::vector<int64_t> targets = targets_of(width);
  const auto [got, numbers] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x, auto& to) {
        launch(kernels, kernel_of<T>("ce_rows"),
               {.grid_x = kRows, .block = block, .shared_bytes = kept * 64 * block}, x.data(),
               width, kept, targets.data(), kWeights.data(), to.data(), to.data() + kRows,
               to.data() + 2 * kRows);
      },
      logits, poisoned<double>(3 * kRows));

  expect_gradient<T>(got, logits, width);
  for (int64_t r = 0; r < kRows; ++r) {
    const SoftmaxRow softmax(logits.data() + r * width, width);
    const int64_t target = targets[to_size(r)];
    const double at_target = logits[to_size(r * width + target)];
    const double expected = at_target - softmax.max - softmax.log_sum;
    EXPECT_TRUE(is_close(numbers[to_size(r)], expected, 1e-5, 1e-6)) << width << " " << r;
    EXPECT_NEAR(numbers[to_size(kRows + r)], softmax.entropy, 1e-5) << width << " " << r;
    EXPECT_EQ(numbers[to_size(2 * kRows + r)], softmax.first == target ? 1 : 0)
        << width << " " << r;
  }
}

TEST(CrossEntropyKernel, WholeVocabularies) {
  for (const int64_t width : {1, 2, 31, 33, 128, 1001}) {
    check_rows<float>(width, 32, 0);
    check_rows<Bf16>(width, 64, 0);
  }
}

// 4,096 columns are 8 pieces of 32 threads: 4 in registers, some of the rest in shared memory.
TEST(CrossEntropyKernel, PiecesInRegistersAndSharedMemory) {
  for (const int32_t kept : {0, 1, 3, 7}) {
    check_rows<Bf16>(4096, 32, kept);
    check_rows<float>(4100, 32, kept);
  }
}

TEST(CrossEntropyKernel, NanSpoilsItsRowAlone) {
  constexpr int64_t kWidth = 132;
  std::vector<float> logits = logits_of(kWidth);
  logits[kWidth + 5] = kNan;
  const std::vector<int64_t> targets = targets_of(kWidth);
  const float* no_weights = nullptr;
  double* no_entropy = nullptr;
  const auto [got, numbers] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x, auto& to) {
        launch(kernels, "retort_ce_rows_f32", {.grid_x = kRows, .block = 32}, x.data(), kWidth,
               int32_t{0}, targets.data(), no_weights, to.data(), no_entropy, to.data() + kRows);
      },
      logits, poisoned<double>(2 * kRows));
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_EQ(std::isnan(numbers[to_size(r)]), r == 1);
    for (int64_t i = 0; i < kWidth; ++i)
      EXPECT_EQ(std::isnan(got[to_size(r * kWidth + i)]), r == 1) << r << " " << i;
  }
  EXPECT_EQ(numbers[kRows + 1], 0);
}

// Two ranks with the columns before and from `begin` on.
struct Half {
  int64_t begin, end;
  std::vector<float> logits, max;
  std::vector<double> sum, moment, target_logit;
  std::vector<int64_t> first;
  int64_t width() const { return end - begin; }
};

Half statistics_of(const std::vector<float>& logits, int64_t width, int64_t begin, int64_t end) {
  Half half{.begin = begin, .end = end};
  for (int64_t r = 0; r < kRows; ++r)
    half.logits.insert(half.logits.end(), logits.begin() + r * width + begin,
                       logits.begin() + r * width + end);
  const std::vector<int64_t> targets = targets_of(width);
  std::tie(half.max, half.sum, half.moment, half.target_logit, half.first) = run_in_orders(
      [&](EmulatedKernels& kernels, auto& max, auto& sum, auto& moment, auto& target, auto& first) {
        launch(kernels, "retort_ce_rows_statistics", {.grid_x = kRows, .block = 64},
               half.logits.data(), half.width(), targets.data(), begin, 1.0f, max.data(),
               sum.data(), moment.data(), target.data(), first.data());
      },
      poisoned<float>(kRows), poisoned<double>(kRows), poisoned<double>(kRows),
      poisoned<double>(kRows), std::vector<int64_t>(kRows, -7));
  return half;
}

template <class T>
void check_halves(int64_t width, int64_t middle) {
  const std::vector<float> logits = logits_of(width);
  Half halves[] = {statistics_of(logits, width, 0, middle),
                   statistics_of(logits, width, middle, width)};
  std::vector<float> max(kRows);
  std::vector<double> sum(kRows);
  for (size_t r = 0; r < to_size(kRows); ++r) {
    const SoftmaxRow softmax(logits.data() + to_int64(r) * width, width);
    max[r] = std::max(halves[0].max[r], halves[1].max[r]);
    double target = 0;
    for (const Half& half : halves) {
      if (half.sum[r] > 0) sum[r] += half.sum[r] * std::exp(double{half.max[r]} - max[r]);
      target += half.target_logit[r];
    }
    EXPECT_NEAR(std::log(sum[r]), softmax.log_sum, 1e-5);
    EXPECT_EQ(target, logits[r * to_size(width) + to_size(targets_of(width)[r])]);
    const Half& owner = halves[halves[0].max[r] == max[r] ? 0 : 1];
    EXPECT_EQ(owner.first[r], softmax.first);
  }

  std::vector<float> joined(logits.size());
  const std::vector<int64_t> targets = targets_of(width);
  for (const Half& half : halves) {
    const auto [got] = run_in_orders(
        [&](EmulatedKernels& kernels, auto& x) {
          launch(kernels, kernel_of<T>("ce_rows_gradient"), {.grid_x = kRows, .block = 32},
                 x.data(), half.width(), targets.data(), half.begin, max.data(), sum.data(),
                 kWeights.data());
        },
        half.logits);
    if (half.width() == 0) continue;  // memcpy takes no null pointer
    for (int64_t r = 0; r < kRows; ++r)
      std::memcpy(reinterpret_cast<T*>(joined.data() + r * width) + half.begin,
                  got.data() + r * half.width(), to_size(half.width()) * sizeof(T));
  }
  expect_gradient<T>(joined, logits, width);
}

TEST(CrossEntropyKernel, SplitVocabularies) {
  check_halves<float>(601, 300);
  check_halves<Bf16>(600, 77);
  check_halves<Bf16>(64, 64);  // the second rank has no columns
}

TEST(CrossEntropyKernel, NoRows) {
  EmulatedKernels kernels(1);
  std::vector<float> logits{kNan};
  std::vector<double> numbers{kNan};
  const std::vector<int64_t> targets{0};
  launch(kernels, "retort_ce_rows_f32", {.grid_x = 0, .block = 32}, logits.data(), int64_t{1},
         int32_t{0}, targets.data(), kWeights.data(), numbers.data(), numbers.data(),
         numbers.data());
  EXPECT_TRUE(std::isnan(numbers[0]));
}

}  // namespace
}  // namespace retort::test::cross_entropy
