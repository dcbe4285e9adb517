// kernels/top_k.cuh against a stable sort.
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "tests/kernels/kernel_check.h"

namespace retort::test::top_k {
namespace {

constexpr int64_t kRows = 2;
constexpr float kInverse = 0.5f;  // of the temperature

// Rows are `stride` apart, from `first` on.
struct Rows {
  std::vector<float> memory;
  int64_t width = 0, stride = 0, first = 0;

  const float* row(int64_t r) const { return memory.data() + first + r * stride; }
};

Rows dense(std::vector<float> logits) {
  const int64_t width = std::ssize(logits) / kRows;
  return {.memory = std::move(logits), .width = width, .stride = width};
}

// Columns by falling values, of equal ones by their place.
std::vector<int64_t> in_order(const float* row, int64_t width) {
  std::vector<int64_t> order(to_size(width));
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int64_t i) { return std::isnan(row[i]) ? 1e300 : double{row[i]}; };
  std::ranges::stable_sort(order, std::greater{}, key);
  return order;
}

void check(const Rows& logits, int32_t k, int64_t block) {
  const auto [values, ids, max, sum, tail_max, tail_sum] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& v, auto& i, auto& top, auto& total, auto& rest_top,
          auto& rest) {
        launch(kernels, "retort_top_k_rows_f32", {.grid_x = kRows, .block = block}, logits.row(0),
               logits.stride, logits.width, k, kInverse, v.data(), i.data(), top.data(),
               total.data(), rest_top.data(), rest.data());
      },
      poisoned<float>(kRows * k), std::vector<int64_t>(to_size(kRows * k), -7),
      poisoned<float>(kRows), poisoned<double>(kRows), poisoned<float>(kRows),
      poisoned<double>(kRows));

  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = logits.row(r);
    const std::vector<int64_t> order = in_order(row, logits.width);
    for (int64_t j = 0; j < k; ++j) {
      ASSERT_EQ(ids[to_size(r * k + j)], order[to_size(j)])
          << "width " << logits.width << " k " << k << " row " << r << " place " << j;
      ASSERT_TRUE(is_close(values[to_size(r * k + j)], row[order[to_size(j)]], 0, 0));
    }
    const SoftmaxRow softmax(row, logits.width, kInverse);
    EXPECT_EQ(max[to_size(r)], softmax.max);
    if (std::isnan(row[0])) {
      EXPECT_TRUE(std::isnan(sum[to_size(r)]));
    } else {
      EXPECT_NEAR(std::log(sum[to_size(r)]), softmax.log_sum, 1e-5);
    }

    // The tail is the softmax of a row that has no others.
    std::vector<float> rest;
    for (size_t i = to_size(k); i < order.size(); ++i)
      rest.push_back(row[order[i]]);
    const SoftmaxRow tail(rest.data(), std::ssize(rest), kInverse);
    EXPECT_EQ(tail_max[to_size(r)], tail.max) << "width " << logits.width << " k " << k;
    if (std::isfinite(tail.max)) {
      EXPECT_NEAR(std::log(tail_sum[to_size(r)]), tail.log_sum, 1e-5);
    } else {
      EXPECT_EQ(tail_sum[to_size(r)], 0);
    }
  }
}

void check(std::vector<float> logits, int32_t k, int64_t block) {
  check(dense(std::move(logits)), k, block);
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

// More equal values than there is room for candidates: the bound is raised digit by digit. What is
// equal but has no room is of the tail, as are smaller values.
TEST(TopKKernel, MoreCandidatesThanRoom) {
  check(std::vector<float>(kRows * 4500, -2.0f), 3, 64);
  std::vector<float> mixed(kRows * 5000, -2.0f);
  for (size_t i = 0; i < mixed.size(); i += 7)
    mixed[i] = -3;
  check(mixed, 3, 64);
}

// A tail far below e^-64 of the row's largest has its digits still.
TEST(TopKKernel, ATailThatIsNothingBesideTheRow) {
  std::vector<float> logits = normal(kRows * 900, 8, 3);
  for (size_t i = 0; i < 40; ++i)
    logits[i * 21] += 500;
  check(logits, 40, 64);
  check(logits, 5, 64);
}

// Rows of a wider matrix: their own places decide whether they move by 16 bytes.
TEST(TopKKernel, RowsOfAWiderMatrix) {
  for (const int64_t first : {0, 1, 4})
    for (const int64_t width : {96, 93})
      check({.memory = normal(kRows * 100 + 8, 9), .width = width, .stride = 100, .first = first},
            6, 64);
}

TEST(TopKKernel, NanIsLargestAndInfinityLeast) {
  std::vector<float> logits = normal(kRows * 300, 6);
  logits[0] = kNan;
  logits[5] = -0.0f;
  std::fill_n(logits.begin() + 310, 200, -kInfinity);
  check(logits, 200, 64);
}

}  // namespace
}  // namespace retort::test::top_k
