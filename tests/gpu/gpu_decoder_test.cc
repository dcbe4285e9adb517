// The decoder on a device against the decoder on the CPU: hidden states and the gradient of every
// parameter.
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include "models/decoder/decoder.h"
#include "models/ops/attention.h"
#include "models/ops/attention_packed_device.h"
#include "models/ops/attention_plan.h"
#include "tests/gpu/device_under_test.h"
#include "tests/support/relative_difference.h"

namespace retort::models {
namespace {

using test::kMayBeZero;
using test::relative_difference;

struct Case {
  std::string name;
  at::ScalarType dtype;
  int64_t kv_heads, head_dim, window;  // window 0: none
  double tolerance;                    // of the norms, against fp32 on the CPU
};

ModelConfig config_of(const Case& given) {
  ModelConfig config;
  config.family = Family::kQwen3;
  config.vocab_size = 300, config.hidden_size = 128, config.intermediate_size = 256,
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4, config.num_key_value_heads = given.kv_heads,
  config.head_dim = given.head_dim;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.1;
  config.sliding_window = {given.window, given.window};
  return config;
}

// Lengths that leave rows of padding behind the last token on the CPU.
PackedTokens some_tokens() {
  std::vector<std::vector<int32_t>> rows;
  uint32_t state = 1;
  for (const size_t length : {3u, 70u, 1u, 45u}) {
    rows.emplace_back();
    for (size_t i = 0; i < length; ++i)
      rows.back().push_back(static_cast<int32_t>((state = state * 1664525u + 1013904223u) >> 8) %
                            300);
  }
  return pack_rows(rows);
}

Decoder copy_to(const Decoder& decoder, const at::TensorOptions& options) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& parameter : decoder.parameters())
    tensors.emplace_back(parameter.name, parameter.value.detach().to(options, false, true));
  return Decoder(decoder.config(), std::move(tensors));
}

at::Tensor backward(Decoder& decoder, const PackedTokens& tokens, const at::Tensor& weights) {
  decoder.set_requires_grad(true);
  const at::Tensor hidden = decoder.hidden(tokens);
  (hidden.to(at::kFloat) * weights.to(hidden.device())).sum().backward();
  return hidden.detach();
}

class GpuDecoder : public ::testing::TestWithParam<Case> {};

TEST_P(GpuDecoder, AgreesWithTheCpu) {
  RETORT_NEEDS_DEVICES(1);
  const Case& given = GetParam();
  const auto options = at::TensorOptions().device(gpu_testing::device_number()).dtype(given.dtype);
  const Decoder start = Decoder::random(config_of(given), 5, at::kFloat);
  Decoder reference = copy_to(start, at::TensorOptions().dtype(at::kFloat));
  Decoder device = copy_to(start, options);
  const PackedTokens tokens = some_tokens();
  PackedTokens there = tokens;
  there.input_ids = tokens.input_ids.to(options.device());
  there.positions = tokens.positions.to(options.device());
  at::manual_seed(7);
  const at::Tensor weights = at::randn({tokens.num_tokens(), reference.config().hidden_size});
  const at::Tensor expected = backward(reference, tokens, weights);
  const at::Tensor got = backward(device, there, weights);
  EXPECT_EQ(got.device(), gpu_testing::device_number());
  EXPECT_LT(relative_difference(got, expected, kMayBeZero), given.tolerance);
  const auto a = device.parameters(), b = reference.parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!b[i].value.grad().defined()) continue;
    ASSERT_TRUE(a[i].value.grad().defined()) << a[i].name;
    EXPECT_LT(relative_difference(a[i].value.grad(), b[i].value.grad(), kMayBeZero),
              2 * given.tolerance)
        << a[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, GpuDecoder,
                         ::testing::Values(Case{"fp32_grouped", at::kFloat, 2, 32, 0, 2e-3},
                                           // block by block
                                           Case{"fp32_window", at::kFloat, 2, 32, 16, 2e-3},
                                           Case{"bf16_grouped", at::kBFloat16, 2, 64, 0, 3e-2},
                                           Case{"bf16_heads", at::kBFloat16, 4, 32, 0, 3e-2},
                                           Case{"bf16_window", at::kBFloat16, 1, 32, 16, 3e-2},
                                           // block by block
                                           Case{"bf16_odd_width", at::kBFloat16, 2, 20, 0, 3e-2}),
                         [](const auto& info) { return info.param.name; });

TEST(GpuAttention, TheKernelsAreTakenWhereTheyFit) {
  RETORT_NEEDS_DEVICES(1);
  if (gpu_testing::device_number().type() != at::kCUDA)
    GTEST_SKIP() << "only CUDA has ATen's kernels of attention";
  const auto plan = [](int64_t head_dim, int64_t window) {
    return c10::make_intrusive<AttentionPlan>(HeadShape{4, 2, head_dim},
                                              std::vector<int64_t>{0, 30, 40}, std::vector<Fork>{},
                                              window, at::TensorOptions());
  };
  const at::Tensor bf16 =
      at::empty({40, 128}, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16));
  EXPECT_TRUE(has_device_kernel(bf16, *plan(32, 0)));
  EXPECT_TRUE(has_device_kernel(bf16, *plan(32, 8)));
  EXPECT_FALSE(has_device_kernel(bf16, *plan(20, 0)));
  EXPECT_TRUE(has_device_kernel(bf16.to(at::kFloat), *plan(32, 30)));
  EXPECT_FALSE(has_device_kernel(bf16.to(at::kFloat), *plan(32, 8)));
  EXPECT_FALSE(has_device_kernel(bf16.cpu(), *plan(32, 0)));
}

}  // namespace
}  // namespace retort::models

int main(int argc, char** argv) {
  retort::gpu_testing::find_device();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
