// kernels/adamw.cuh against its formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::adamw {
namespace {

// As AdamwTensor and AdamwChunk.
struct AdamwTensor {
  float *master, *exp_avg, *exp_avg_sq;
  const float* grad;
  Bf16* weight;
  int64_t count;
  float weight_decay;
  int32_t unused = 0;
};
struct Chunk {
  int64_t tensor, begin;
};

constexpr float kRate = 1e-2f, kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f;
constexpr float kBias1 = 0.19f, kBias2Sqrt = 0.3f, kDecay = 0.1f;

// Two tensors lie one behind the other in all arrays; the second has no weight decay, and no bf16
// weights. `shift`: elements behind an aligned address.
void check(int64_t first, int64_t second, int64_t shift, const float* scale) {
  constexpr int64_t kChunkSize = 256;
  const int64_t all = shift + first + second;
  const std::vector<float> grad = normal(all, 1), p0 = normal(all, 2), m0 = normal(all, 3, 0.1f);
  std::vector<float> v0 = normal(all, 4);
  for (float& v : v0)
    v *= v;
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < first; begin += kChunkSize)
    chunks.push_back({0, begin});
  for (int64_t begin = 0; begin < second; begin += kChunkSize)
    chunks.push_back({1, begin});

  const auto [p, m, v, weight] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& master, auto& avg, auto& square, auto& narrowed) {
        const auto tensor = [&](int64_t at, int64_t count, Bf16* to, float decay) {
          return AdamwTensor{master.data() + at,
                             avg.data() + at,
                             square.data() + at,
                             grad.data() + at,
                             to,
                             count,
                             decay};
        };
        const AdamwTensor table[] = {tensor(shift, first, narrowed.data() + shift, kDecay),
                                     tensor(shift + first, second, nullptr, 0)};
        const AdamwTensor* tensors = table;
        launch(kernels, "retort_adamw", {.grid_x = std::ssize(chunks), .block = 64}, tensors,
               chunks.data(), kChunkSize, scale, kRate, kBeta1, kBeta2, kEps, kBias1, kBias2Sqrt);
      },
      p0, m0, v0, poisoned<Bf16>(all));

  for (size_t i = to_size(shift); i < to_size(all); ++i) {
    const bool is_first = to_int64(i) < shift + first;
    const double g = grad[i] * (scale ? *scale : 1.0);
    const double em = kBeta1 * m0[i] + (1.0 - kBeta1) * g;
    const double ev = kBeta2 * v0[i] + (1.0 - kBeta2) * g * g;
    const double decayed = p0[i] * (is_first ? 1.0 - double{kRate} * kDecay : 1.0);
    const double ep = decayed - kRate / kBias1 * em / (std::sqrt(ev) / kBias2Sqrt + kEps);
    ASSERT_TRUE(is_close(m[i], em, 1e-7, 1e-5)) << i;
    ASSERT_TRUE(is_close(v[i], ev, 1e-7, 1e-5)) << i;
    ASSERT_TRUE(is_close(p[i], ep, 1e-6, 1e-5)) << i << ": " << p[i] << ", not " << ep;
    if (is_first) {
      ASSERT_EQ(weight[i], narrow<Bf16>(p[i])) << i;
    } else {
      ASSERT_TRUE(std::isnan(widen(weight[i]))) << i;
    }
  }
}

TEST(AdamwKernel, StepsOverManyTensors) {
  const float half = 0.5f;
  check(1000, 515, 0, nullptr);
  check(1, 31, 0, &half);
  check(256, 33, 1, nullptr);
  check(0, 5, 0, &half);
}

}  // namespace
}  // namespace retort::test::adamw
