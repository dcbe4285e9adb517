// What the tests of single kernels share: bfloat16, rows of numbers, and runs that five drawn
// orders of threads must leave with the same bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/sizes.h"
#include "tests/kernels/emulated_kernels.h"

namespace retort::test {

using emulator::EmulatedKernels;
using kernels::Launch;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The bits of a bfloat16.
using Bf16 = uint16_t;

inline float widen(float x) { return x; }
inline float widen(Bf16 bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
template <class T>
T narrow(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    const auto bits = std::bit_cast<uint32_t>(x);
    return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
  }
}
// What one rounding to T may be wrong by, relatively.
template <class T>
constexpr double kRounding = sizeof(T) == 2 ? 1.0 / 256 : 1e-5;

// "retort_<name>_bf16" or "_f32".
template <class T>
std::string kernel_of(const std::string& name) {
  return "retort_" + name + (sizeof(T) == 2 ? "_bf16" : "_f32");
}

template <class T = float>
std::vector<T> normal(int64_t count, uint64_t seed, float scale = 1, float mean = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw(mean, scale);
  std::vector<T> numbers(to_size(count));
  for (T& x : numbers)
    x = narrow<T>(draw(random));
  return numbers;
}

// What a kernel must write: NaN until it has.
template <class T>
std::vector<T> poisoned(int64_t count) {
  std::vector<T> numbers(to_size(count));
  if (count > 0) std::memset(numbers.data(), 0xff, numbers.size() * sizeof(T));
  return numbers;
}

template <class... Arguments>
void launch(EmulatedKernels& kernels, const std::string& name, Launch shape,
            const Arguments&... arguments) {
  shape.name = name.c_str();
  kernels::launch_kernel(kernels, at::kCPU, shape, arguments...);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// What run(kernels, memory...) leaves in copies of `before`, the same in five orders of threads.
template <class F, class... T>
std::tuple<std::vector<T>...> run_in_orders(const F& run, const std::vector<T>&... before) {
  std::tuple<std::vector<T>...> first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EmulatedKernels kernels(seed);
    std::tuple<std::vector<T>...> memory(before...);
    std::apply([&](auto&... each) { run(kernels, each...); }, memory);
    if (seed == 0) first = memory;
    const bool same = [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      return (same_bits(std::get<kIndex>(first), std::get<kIndex>(memory)) && ...);
    }
    (std::index_sequence_for<T...>());
    EXPECT_TRUE(same) << "another order of threads gives other bits, seed " << seed;
  }
  return first;
}

// NaN is close to NaN, and an infinity to itself.
inline bool is_close(double got, double expected, double absolute, double relative) {
  if (std::isnan(expected)) return std::isnan(got);
  return got == expected || std::abs(got - expected) <= absolute + relative * std::abs(expected);
}

// A float64 softmax of (logit - max) / T: the formulas that kernels/row_softmax.cuh documents.
struct SoftmaxRow {
  double max = -std::numeric_limits<double>::infinity();
  double log_sum = 0;
  double entropy = 0;
  int64_t first = 0;  // column of the first of the largest
  std::vector<double> p;

  SoftmaxRow(const float* row, int64_t width, double inv_temperature = 1) : p(to_size(width)) {
    for (int64_t i = 0; i < width; ++i) {
      if (!(row[i] > max)) continue;
      max = row[i];
      first = i;
    }
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double x = (row[i] - max) * inv_temperature;
      p[to_size(i)] = x < -64 ? 0 : std::exp(x);
      sum += p[to_size(i)];
    }
    log_sum = std::log(sum);
    for (double& x : p) {
      x /= sum;
      if (x > 0) entropy -= x * std::log(x);
    }
  }
};

}  // namespace retort::test
