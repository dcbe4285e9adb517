// kernels/rotary.cuh against its formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::rotary {
namespace {

constexpr float kEps = 1e-6f;

struct Shape {
  int64_t rows;
  int32_t heads, kv_heads, dim, half;
  bool normed;
  float offset = 0;
  int64_t gap = 0;  // between rows
  int32_t passes = 2;
  int64_t stride(int64_t of_heads) const { return of_heads * dim + gap; }
};

using Head = std::vector<double>;

// n = x rstd (w + offset)
Head normed(const Shape& shape, const Head& x, const Head& weight) {
  if (!shape.normed) return x;
  double squares = 0;
  for (const double v : x)
    squares += v * v;
  const double rstd = 1 / std::sqrt(squares / shape.dim + kEps);
  Head n;
  for (size_t i = 0; i < x.size(); ++i)
    n.push_back(x[i] * rstd * (weight[i] + shape.offset));
  return n;
}

// With sign -1 by the transpose.
Head turned(const Shape& shape, const Head& n, const float* cos, const float* sin, double sign) {
  Head y = n;
  const size_t half = to_size(shape.half);
  for (size_t i = 0; i < half; ++i) {
    y[i] = n[i] * cos[i] - sign * n[i + half] * sin[i];
    y[i + half] = n[i + half] * cos[i] + sign * n[i] * sin[i];
  }
  return y;
}

// From the gradient h of the norm's result; adds to that by the weight.
Head norm_gradient(const Shape& shape, const Head& x, const Head& weight, const Head& h,
                   Head& of_weight) {
  if (!shape.normed) return h;
  double squares = 0, product = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    squares += x[i] * x[i];
    product += (weight[i] + shape.offset) * h[i] * x[i];
  }
  const double rstd = 1 / std::sqrt(squares / shape.dim + kEps);
  const double c = rstd * rstd * product / shape.dim;
  Head dx;
  for (size_t i = 0; i < x.size(); ++i) {
    of_weight[i] += h[i] * x[i] * rstd;
    dx.push_back(rstd * ((weight[i] + shape.offset) * h[i] - x[i] * c));
  }
  return dx;
}

template <class T>
Head head_of(const std::vector<T>& from, int64_t at, int64_t dim) {
  Head head;
  for (int64_t i = 0; i < dim; ++i)
    head.push_back(widen(from[to_size(at + i)]));
  return head;
}

template <class T>
struct Inputs {
  std::vector<T> q, k, dq, dk, q_weight, k_weight;
  std::vector<float> cos, sin;

  explicit Inputs(const Shape& s)
      : q(normal<T>(s.rows * s.stride(s.heads), 1)),
        k(normal<T>(s.rows * s.stride(s.kv_heads), 2)),
        dq(normal<T>(s.rows * s.stride(s.heads), 3)),
        dk(normal<T>(s.rows * s.stride(s.kv_heads), 4)),
        q_weight(normal<T>(s.dim, 5, 0.2f, 1)),
        k_weight(normal<T>(s.dim, 6, 0.2f, 1)),
        cos(normal(s.rows * s.half, 7)),
        sin(normal(s.rows * s.half, 8)) {
    for (size_t i = 0; i < cos.size(); ++i) {
      const float angle = cos[i];
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
  }
};

template <class T>
void expect_head(const std::vector<T>& got, int64_t at, const Head& expected, double absolute) {
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_TRUE(is_close(widen(got[to_size(at) + i]), expected[i], absolute, kRounding<T>))
        << at << " + " << i << ": " << widen(got[to_size(at) + i]) << ", not " << expected[i];
}

template <class T>
void check_forward(const Shape& s, const Inputs<T>& in) {
  const T* q_weight = s.normed ? in.q_weight.data() : nullptr;
  const T* k_weight = s.normed ? in.k_weight.data() : nullptr;
  const int64_t q_stride = s.stride(s.heads), k_stride = s.stride(s.kv_heads);
  const auto [q, k] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& q_out, auto& k_out) {
        launch(kernels, kernel_of<T>("qk_norm_rope"), {.grid_x = 2, .block = 64}, in.q.data(),
               in.k.data(), q_weight, k_weight, in.cos.data(), in.sin.data(), q_out.data(),
               k_out.data(), s.rows, s.heads, s.kv_heads, s.dim, s.half, q_stride, k_stride,
               q_stride, k_stride, kEps, s.offset, s.passes);
      },
      poisoned<T>(s.rows * q_stride), poisoned<T>(s.rows * k_stride));

  const auto check_side = [&](const auto& got, const auto& from, const auto& weight,
                              int64_t heads) {
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = r * s.stride(heads) + h * s.dim;
        const Head n = normed(s, head_of(from, at, s.dim), head_of(weight, 0, s.dim));
        const Head y = turned(s, n, in.cos.data() + r * s.half, in.sin.data() + r * s.half, 1);
        expect_head(got, at, y, 1e-5);
      }
  };
  check_side(q, in.q, in.q_weight, s.heads);
  check_side(k, in.k, in.k_weight, s.kv_heads);
}

template <class T>
void check_backward(const Shape& s, const Inputs<T>& in) {
  constexpr int64_t kBlocks = 3;
  const T* q_weight = s.normed ? in.q_weight.data() : nullptr;
  const T* k_weight = s.normed ? in.k_weight.data() : nullptr;
  const int64_t q_stride = s.stride(s.heads), k_stride = s.stride(s.kv_heads);
  const auto [dq, dk, partial] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& of_q, auto& of_k, auto& dw) {
        launch(kernels, kernel_of<T>("qk_norm_rope_backward"), {.grid_x = kBlocks, .block = 64},
               in.dq.data(), in.dk.data(), in.q.data(), in.k.data(), q_weight, k_weight,
               in.cos.data(), in.sin.data(), of_q.data(), of_k.data(), dw.data(), s.rows, s.heads,
               s.kv_heads, s.dim, s.half, q_stride, k_stride, q_stride, k_stride, q_stride,
               k_stride, kEps, s.offset, s.passes);
      },
      poisoned<T>(s.rows * q_stride), poisoned<T>(s.rows * k_stride),
      poisoned<float>(kBlocks * 2 * s.dim));

  const auto check_side = [&](const auto& got, const auto& from, const auto& gradient,
                              const auto& weight, int64_t heads, int64_t side) {
    Head of_weight(to_size(s.dim)), sum(to_size(s.dim));
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = r * s.stride(heads) + h * s.dim;
        const Head back = turned(s, head_of(gradient, at, s.dim), in.cos.data() + r * s.half,
                                 in.sin.data() + r * s.half, -1);
        const Head dx =
            norm_gradient(s, head_of(from, at, s.dim), head_of(weight, 0, s.dim), back, of_weight);
        expect_head(got, at, dx, 2e-5);
      }
    for (int64_t b = 0; b < kBlocks; ++b)
      for (int64_t i = 0; i < s.dim; ++i)
        sum[to_size(i)] += partial[to_size((2 * b + side) * s.dim + i)];
    for (size_t i = 0; i < sum.size(); ++i)
      EXPECT_NEAR(sum[i], of_weight[i], 1e-5 + 1e-5 * std::abs(of_weight[i])) << i;
  };
  check_side(dq, in.q, in.dq, in.q_weight, s.heads, 0);
  check_side(dk, in.k, in.dk, in.k_weight, s.kv_heads, 1);
}

template <class T>
void check(const Shape& shape) {
  const Inputs<T> inputs(shape);
  check_forward(shape, inputs);
  check_backward(shape, inputs);
}

TEST(RotaryKernel, ByPacks) {
  check<Bf16>({5, 4, 2, 128, 64, true});
  check<Bf16>({3, 3, 1, 64, 32, false});
  check<float>({4, 4, 2, 64, 32, true, 1});
  check<Bf16>({3, 2, 1, 256, 128, true, 0, 0, 3});
}

TEST(RotaryKernel, AHeadThatTurnsInPart) {
  check<Bf16>({3, 2, 2, 96, 24, true});
  check<float>({3, 2, 1, 20, 4, false});
}

TEST(RotaryKernel, ByElements) {
  check<Bf16>({3, 3, 2, 18, 9, true, 0, 3});
  check<float>({3, 3, 2, 6, 3, true, 0, 1, 1});
  check<float>({2, 2, 1, 250, 125, true});
}

TEST(RotaryKernel, RowsOfAWiderProduct) { check<Bf16>({4, 2, 1, 64, 32, true, 0, 64}); }

// All of the gradient by the weights is written.
TEST(RotaryKernel, NoRows) { check<Bf16>({0, 2, 1, 64, 32, true}); }

TEST(RotaryKernel, NanSpoilsItsHeadAlone) {
  const Shape s{2, 2, 1, 64, 32, true};
  Inputs<float> in(s);
  in.q[64 + 3] = kNan;
  const auto [q, k] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& q_out, auto& k_out) {
        launch(kernels, "retort_qk_norm_rope_f32", {.block = 64}, in.q.data(), in.k.data(),
               in.q_weight.data(), in.k_weight.data(), in.cos.data(), in.sin.data(), q_out.data(),
               k_out.data(), s.rows, s.heads, s.kv_heads, s.dim, s.half, s.stride(2), s.stride(1),
               s.stride(2), s.stride(1), kEps, 0.0f, int32_t{1});
      },
      poisoned<float>(2 * 128), poisoned<float>(2 * 64));
  for (size_t i = 0; i < q.size(); ++i)
    EXPECT_EQ(std::isnan(q[i]), i >= 64 && i < 128) << i;
  for (const float x : k)
    EXPECT_FALSE(std::isnan(x));
}

}  // namespace
}  // namespace retort::test::rotary
