// kernels/norm.cuh and norm_backward.cuh against their formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::norm {
namespace {

constexpr float kEps = 1e-6f;

struct Shape {
  int64_t rows, width;
  int32_t threads;  // of a row
  int64_t block, grid;
  bool residual;  // a sum before the norm, and its gradient behind
  float offset = 0;
  int64_t shift = 0;  // of the addresses, in elements

  int64_t count() const { return rows * width + shift; }
  int64_t partial_rows() const { return grid * block / threads; }
};

double rstd_of(const double* row, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i)
    squares += row[i] * row[i];
  return 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
}

template <class T>
std::vector<double> widened(const std::vector<T>& from, int64_t shift) {
  std::vector<double> to;
  for (size_t i = to_size(shift); i < from.size(); ++i)
    to.push_back(widen(from[i]));
  return to;
}

template <class T>
void expect_close(const char* what, const std::vector<T>& got, int64_t shift,
                  const std::vector<double>& expected, double absolute) {
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_TRUE(is_close(widen(got[i + to_size(shift)]), expected[i], absolute, kRounding<T>))
        << what << " " << i << ": " << widen(got[i + to_size(shift)]) << ", not " << expected[i];
}

// s, y and rstd of the kernel; s as it rounds it.
template <class T>
struct Forward {
  std::vector<T> s;
  std::vector<float> rstd;
};

template <class T>
Forward<T> check_forward(const Shape& shape, const std::vector<T>& weight) {
  const std::vector<T> a = normal<T>(shape.count(), 1), b = normal<T>(shape.count(), 2);
  const T* added = shape.residual ? b.data() + shape.shift : nullptr;
  const auto [sum, y, rstd] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& s, auto& to, auto& of_row) {
        launch(kernels, kernel_of<T>("add_rms_norm"), {.grid_x = shape.grid, .block = shape.block},
               a.data() + shape.shift, added, weight.data() + shape.shift, s.data() + shape.shift,
               to.data() + shape.shift, of_row.data(), shape.rows, shape.width, kEps, shape.offset,
               shape.threads);
      },
      poisoned<T>(shape.count()), poisoned<T>(shape.count()), poisoned<float>(shape.rows));

  std::vector<T> s = a;
  if (shape.residual)
    for (size_t i = 0; i < s.size(); ++i)
      s[i] = narrow<T>(widen(a[i]) + widen(b[i]));
  if (shape.residual && shape.shift == 0) {
    EXPECT_TRUE(same_bits(s, sum));
  }
  const std::vector<double> x = widened(s, shape.shift), w = widened(weight, shape.shift);
  std::vector<double> expected(x.size());
  for (int64_t r = 0; r < shape.rows; ++r) {
    const double of_row = rstd_of(x.data() + r * shape.width, shape.width);
    EXPECT_NEAR(rstd[to_size(r)], of_row, 1e-5 * of_row);
    for (int64_t i = r * shape.width; i < (r + 1) * shape.width; ++i)
      expected[to_size(i)] = x[to_size(i)] * of_row * (w[to_size(i % shape.width)] + shape.offset);
  }
  expect_close("y", y, shape.shift, expected, 1e-6);
  return {s, rstd};
}

template <class T>
void check_backward(const Shape& shape, const std::vector<T>& weight, const Forward<T>& forward) {
  const std::vector<T> dy = normal<T>(shape.count(), 4), dsum = normal<T>(shape.count(), 5);
  const T* extra = shape.residual ? dsum.data() + shape.shift : nullptr;
  const std::vector<float> before = normal(shape.width, 6);
  const auto [dx, partial, dw] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to, auto& rows, auto& of_weight) {
        launch(kernels, kernel_of<T>("rms_norm_backward"),
               {.grid_x = shape.grid, .block = shape.block}, dy.data() + shape.shift,
               forward.s.data() + shape.shift, weight.data() + shape.shift, forward.rstd.data(),
               extra, to.data() + shape.shift, rows.data(), shape.rows, shape.width, shape.offset,
               shape.threads);
        launch(kernels, "retort_column_sum_f32", {.grid_x = 2, .block = 64}, rows.data(),
               of_weight.data(), static_cast<int32_t>(shape.partial_rows()), shape.width,
               int32_t{1});
      },
      poisoned<T>(shape.count()), poisoned<float>(shape.partial_rows() * shape.width), before);

  const std::vector<double> g = widened(dy, shape.shift), x = widened(forward.s, shape.shift);
  const std::vector<double> w = widened(weight, shape.shift), more = widened(dsum, shape.shift);
  std::vector<double> of_weight(before.begin(), before.end()), expected(x.size());
  for (int64_t r = 0; r < shape.rows; ++r) {
    const double rstd = rstd_of(x.data() + r * shape.width, shape.width);
    double product = 0;
    for (int64_t i = 0; i < shape.width; ++i) {
      const size_t at = to_size(r * shape.width + i);
      product += (w[to_size(i)] + shape.offset) * g[at] * x[at];
      of_weight[to_size(i)] += g[at] * x[at] * rstd;
    }
    const double c = rstd * rstd * product / static_cast<double>(shape.width);
    for (int64_t i = 0; i < shape.width; ++i) {
      const size_t at = to_size(r * shape.width + i);
      const double u = (w[to_size(i)] + shape.offset) * g[at];
      expected[at] = (shape.residual ? more[at] : 0) + rstd * (u - x[at] * c);
    }
  }
  expect_close("dx", dx, shape.shift, expected, 2e-5);
  expect_close("dw", dw, 0, of_weight, 2e-5);
}

template <class T>
void check(const Shape& shape) {
  const std::vector<T> weight = normal<T>(shape.width + shape.shift, 3, 0.2f, 1);
  const Forward<T> forward = check_forward<T>(shape, weight);
  check_backward<T>(shape, weight, forward);
}

TEST(NormKernel, ByPacks) {
  for (const bool residual : {false, true}) {
    check<float>({5, 128, 32, 64, 2, residual});
    check<Bf16>({5, 128, 32, 64, 2, residual, 1});
    check<Bf16>({7, 1024, 128, 128, 3, residual});
    check<float>({3, 2048, 128, 256, 1, residual});
  }
}

// Forward reads again what its threads cannot hold.
TEST(NormKernel, RowsWiderThanRegisters) {
  const Shape shape{2, 2056, 32, 64, 1, true};
  check_forward<Bf16>(shape, normal<Bf16>(shape.width, 3, 0.2f, 1));
  check_forward<float>(shape, normal<float>(shape.width, 3, 0.2f, 1));
}

TEST(NormKernel, ByElements) {
  for (const int64_t width : {2, 31, 33, 301}) {
    check<float>({4, width, 32, 64, 2, true});
    check<Bf16>({4, width, 64, 64, 2, false, 1});
  }
  check<Bf16>({3, 128, 32, 64, 2, true, 0, 1});
}

// All of the gradient by the weight is written also where a block has no row.
TEST(NormKernel, NoRows) {
  const Shape shape{0, 64, 32, 64, 2, true};
  check<float>(shape);
  check<Bf16>(shape);
}

TEST(NormKernel, NanSpoilsItsRowAlone) {
  std::vector<float> a = normal(2 * 64, 1);
  a[70] = kNan;
  const std::vector<float> weight(64, 1.0f);
  const float* none = nullptr;
  float* no_sum = nullptr;
  const auto [y] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to) {
        launch(kernels, "retort_add_rms_norm_f32", {.block = 64}, a.data(), none, weight.data(),
               no_sum, to.data(), no_sum, int64_t{2}, int64_t{64}, kEps, 0.0f, int32_t{32});
      },
      poisoned<float>(2 * 64));
  for (size_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(std::isnan(y[i]), i >= 64) << i;
}

}  // namespace
}  // namespace retort::test::norm
