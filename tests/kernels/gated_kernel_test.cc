// kernels/gated.cuh against its formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::gated {
namespace {

struct Gate {
  double value, slope;
};

Gate silu(double g) {
  const double s = 1 / (1 + std::exp(-g));
  return {g * s, s * (1 + g * (1 - s))};
}

Gate gelu_tanh(double g) {
  constexpr double kSlope = 0.7978845608028654, kCubic = 0.044715;  // sqrt(2 / pi)
  const double t = std::tanh(kSlope * (g + kCubic * g * g * g));
  const double inner = kSlope * (1 + 3 * kCubic * g * g);
  return {0.5 * g * (1 + t), 0.5 * (1 + t) + 0.5 * g * (1 - t * t) * inner};
}

// `shift` elements behind an aligned address.
template <class T>
void check(const std::string& name, Gate (*gate_of)(double), int64_t count, int64_t shift) {
  const std::vector<T> gate = normal<T>(count + shift, 1, 3);
  const std::vector<T> up = normal<T>(count + shift, 2);
  const std::vector<T> dy = normal<T>(count + shift, 3);
  const Launch shape{.grid_x = 2, .block = 64};
  const auto [y, dgate, dup] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to, auto& of_gate, auto& of_up) {
        launch(kernels, kernel_of<T>(name), shape, gate.data() + shift, up.data() + shift,
               to.data() + shift, count);
        launch(kernels, kernel_of<T>(name + "_backward"), shape, dy.data() + shift,
               gate.data() + shift, up.data() + shift, of_gate.data() + shift, of_up.data() + shift,
               count);
      },
      poisoned<T>(count + shift + 1), poisoned<T>(count + shift + 1),
      poisoned<T>(count + shift + 1));

  for (size_t i = to_size(shift); i < to_size(count + shift); ++i) {
    const Gate g = gate_of(widen(gate[i]));
    const double gradient = widen(dy[i]);
    ASSERT_TRUE(is_close(widen(y[i]), g.value * widen(up[i]), 1e-5, kRounding<T>)) << i;
    ASSERT_TRUE(is_close(widen(dup[i]), gradient * g.value, 1e-5, kRounding<T>)) << i;
    ASSERT_TRUE(is_close(widen(dgate[i]), gradient * widen(up[i]) * g.slope, 1e-5, kRounding<T>))
        << i;
  }
  for (const std::vector<T>* out : {&y, &dgate, &dup})
    EXPECT_TRUE(std::isnan(widen(out->back()))) << "written behind the end";
}

TEST(GatedKernel, ValuesAndGradients) {
  for (const int64_t count : {1, 7, 31, 33, 1000, 2311}) {
    check<float>("gated_silu", silu, count, 0);
    check<Bf16>("gated_silu", silu, count, 0);
    check<float>("gated_gelu", gelu_tanh, count, 0);
    check<Bf16>("gated_gelu", gelu_tanh, count, 0);
  }
}

TEST(GatedKernel, AddressesThatPacksDoNotFit) {
  check<float>("gated_silu", silu, 333, 1);
  check<Bf16>("gated_gelu", gelu_tanh, 333, 3);
}

TEST(GatedKernel, InfinityAndNan) {
  const std::vector<float> gate{-kInfinity, kInfinity, kNan, 200, -200}, up(5, 1.0f);
  const auto [y] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to) {
        launch(kernels, "retort_gated_silu_f32", {.block = 32}, gate.data(), up.data(), to.data(),
               int64_t{5});
      },
      poisoned<float>(5));
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 200);
  EXPECT_NEAR(y[4], 0, 1e-30);
}

TEST(GatedKernel, NoElements) {
  EmulatedKernels kernels(1);
  float y = kNan;
  launch(kernels, "retort_gated_silu_f32", {.block = 32}, &y, &y, &y, int64_t{0});
  EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace retort::test::gated
