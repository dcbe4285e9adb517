// kernels/top_k.cuh against a stable sort.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/kernels/kernel_check.h"

namespace retort::test::top_k {
namespace {

constexpr int64_t kRows = 2;

void check(const std::vector<float>& logits, int32_t k, int64_t block) {
  const int64_t width = std::ssize(logits) / kRows;
  const auto [values, ids, max, sum] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& v, auto& i, auto& top, auto& total) {
        launch(kernels, "retort_top_k_rows_f32", {.grid_x = kRows, .block = block}, logits.data(),
               width, width, k, 0.5f, v.data(), i.data(), top.data(), total.data());
      },
      poisoned<float>(kRows * k), std::vector<int64_t>(to_size(kRows * k), -7),
      poisoned<float>(kRows), poisoned<double>(kRows));

  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = logits.data() + r * width;
    std::vector<int64_t> order(to_size(width));
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](int64_t i) { return std::isnan(row[i]) ? 1e300 : double{row[i]}; };
    std::ranges::stable_sort(order, std::greater{}, key);
    for (int64_t j = 0; j < k; ++j) {
      ASSERT_EQ(ids[to_size(r * k + j)], order[to_size(j)])
          << "width " << width << " k " << k << " row " << r << " place " << j;
      ASSERT_TRUE(is_close(values[to_size(r * k + j)], row[order[to_size(j)]], 0, 0));
    }
    const SoftmaxRow softmax(row, width, 0.5);
    EXPECT_EQ(max[to_size(r)], softmax.max);
    if (std::isnan(row[0])) continue;
    EXPECT_NEAR(std::log(sum[to_size(r)]), softmax.log_sum, 1e-5);
  }
}

TEST(TopKKernel, NormalRows) {
  for (const int64_t width : {1, 2, 31, 33, 128, 1001})
    for (const int32_t k : {1, 5, 200})
      if (k <= width) check(normal(kRows * width, 3, 4), k, k > 100 ? 128 : 64);
}

TEST(TopKKernel, EqualValuesComeByTheirIds) {
  check(std::vector<float>(kRows * 500, 1.5f), 70, 64);
  std::vector<float> rounded = normal(kRows * 700, 5, 2);
  for (float& x : rounded)
    x = std::round(x);
  check(rounded, 300, 64);
}

// More equal values than there is room for candidates: the bound is raised digit by digit.
TEST(TopKKernel, MoreCandidatesThanRoom) { check(std::vector<float>(kRows * 4500, -2.0f), 3, 64); }

TEST(TopKKernel, NanIsLargestAndInfinityLeast) {
  std::vector<float> logits = normal(kRows * 300, 6);
  logits[0] = kNan;
  logits[5] = -0.0f;
  std::fill_n(logits.begin() + 310, 200, -kInfinity);
  check(logits, 200, 64);
}

}  // namespace
}  // namespace retort::test::top_k
