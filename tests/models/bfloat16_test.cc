// A model in bfloat16 against the same model in float32: numbers, gradients, generation.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/decoder/decoder.h"
#include "models/generation/generate.h"
#include "tests/models/small_model.h"

namespace retort::models::bfloat16 {
namespace {

// bfloat16 keeps 8 bits: a rounding is off by at most 2^-9 = 0.2 %, and a gradient has passed some
// tens of them. Independent as they are, they add up across a gradient's direction (2.5 % of its
// length here, at most) much more than along it (0.5 %), the less so the more tokens there are.
constexpr double kRelative = 0.035;  // |x - g| / |g| of a parameter's gradient
constexpr double kScale = 0.015;     // <x, g> / <g, g> - 1: 5 % too much are 3.5 % outside
constexpr double kLogProb = 0.02;    // nats, mean over the tokens

ModelConfig config_of(Family family) {
  ModelConfig config = small_config();
  config.family = family;
  apply_family(config);
  config.attention_bias = family == Family::kQwen2;
  if (family == Family::kMistral || config.output_norms) config.sliding_window = {24, 0};
  if (family == Family::kPhi3) config.rope.partial_rotary_factor = 0.75;
  if (family == Family::kGemma2)
    config.attn_logit_softcapping = 2, config.final_logit_softcapping = 5;
  if (family == Family::kGemma3) config.sliding_rope = Rope{.theta = 100};
  if (config.scaled_embedding) config.hidden_size = 256;  // whose root bfloat16 holds
  return config;
}

// The same model in float32.
Decoder widened(const Decoder& half) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value] : tensors_of(half))
    tensors.emplace_back(name, value.to(at::kFloat));
  return Decoder(half.config(), std::move(tensors));
}

// The same weights, which bfloat16 holds, in both.
struct Twins {
  explicit Twins(Family family)
      : half(Decoder::random(config_of(family), 5, at::kBFloat16)), wide(widened(half)) {
    half.set_requires_grad(true);
    wide.set_requires_grad(true);
  }
  Decoder half, wide;
};

PackedTokens rows() {
  std::vector<std::vector<int32_t>> all;
  for (uint32_t i = 0; i < 12; ++i)
    all.push_back(some_tokens(40 + 2 * i, i + 1));
  return pack_rows(all);
}

// Of each next token; the last of a sequence counts as well, whatever follows it.
at::Tensor next_logps(const Decoder& decoder, const PackedTokens& tokens) {
  const at::Tensor logits = decoder.logits(decoder.hidden(tokens)).to(at::kFloat);
  const int64_t count = tokens.num_tokens() - 1;
  return at::log_softmax(logits.narrow(0, 0, count), -1)
      .gather(1, tokens.input_ids.narrow(0, 1, count).unsqueeze(1))
      .squeeze(1);
}

void backward(const Decoder& decoder) {
  torch::autograd::backward({-next_logps(decoder, rows()).mean()}, {});
}

struct Worst {
  double relative = 0, scale = 0;
  std::string relative_name, scale_name;
};

// Over all parameters, with one of the gradients changed first.
Worst worst(
    const Twins& twins, const std::function<void(const std::string&, at::Tensor&)>& change =
                            [](const std::string&, at::Tensor&) {}) {
  Worst worst;
  const auto halves = twins.half.parameters(), wides = twins.wide.parameters();
  for (size_t i = 0; i < wides.size(); ++i) {
    at::Tensor x = halves[i].value.grad().to(at::kDouble);
    change(halves[i].name, x);
    const at::Tensor g = wides[i].value.grad().to(at::kDouble);
    const double squares = g.square().sum().item<double>();
    const double relative = std::sqrt((x - g).square().sum().item<double>() / squares);
    const double scale = std::abs((x * g).sum().item<double>() / squares - 1);
    // A bias of keys has no gradient but that of roundings: softmax does not see it.
    if (wides[i].name.ends_with("k_proj.bias")) continue;
    if (relative > worst.relative) worst.relative = relative, worst.relative_name = wides[i].name;
    if (scale > worst.scale) worst.scale = scale, worst.scale_name = wides[i].name;
  }
  return worst;
}

class Bfloat16 : public testing::TestWithParam<Family> {};

TEST_P(Bfloat16, LogProbabilitiesFollowFloat32) {
  const Twins twins(GetParam());
  const at::Tensor off =
      (next_logps(twins.half, rows()) - next_logps(twins.wide, rows())).detach().abs();
  EXPECT_LT(off.mean().item<double>(), kLogProb);
  EXPECT_GT(off.max().item<double>(), 1e-4) << "nothing was computed in bfloat16";
}

TEST_P(Bfloat16, EveryGradientFollowsFloat32) {
  for (const bool checkpointing : {false, true}) {
    Twins twins(GetParam());
    twins.half.set_gradient_checkpointing(checkpointing);
    backward(twins.half);
    backward(twins.wide);
    const Worst found = worst(twins);
    EXPECT_LT(found.relative, kRelative) << found.relative_name;
    EXPECT_LT(found.scale, kScale) << found.scale_name;
    RecordProperty("relative", std::to_string(found.relative));
    RecordProperty("scale", std::to_string(found.scale));
  }
}

// What the bounds are for.
TEST_P(Bfloat16, AGradientThatIsFivePercentOffIsSeen) {
  const Twins twins(GetParam());
  backward(twins.half);
  backward(twins.wide);
  for (const auto& parameter : twins.wide.parameters()) {
    if (parameter.name.ends_with("k_proj.bias")) continue;
    for (const double factor : {0.95, 1.05}) {
      const Worst found = worst(twins, [&](const std::string& name, at::Tensor& x) {
        if (name == parameter.name) x.mul_(factor);
      });
      EXPECT_GT(found.scale, kScale) << parameter.name << " times " << factor;
    }
  }
}

TEST_P(Bfloat16, AMissingHeadIsSeen) {
  Twins twins(GetParam());
  {
    // Nothing of the last head reaches the residual stream.
    const at::NoGradGuard no_grad;
    for (const auto& parameter : twins.half.parameters())
      if (parameter.name == "model.layers.1.self_attn.o_proj.weight")
        parameter.value.narrow(1, 96, 32).zero_();
  }
  backward(twins.half);
  backward(twins.wide);
  EXPECT_GT(worst(twins).relative, 2 * kRelative);
}

// Generation computes in float32 over the rounded weights.
TEST_P(Bfloat16, GenerationIsThatOfFloat32) {
  const Twins twins(GetParam());
  const GenerateOptions options{.draw = {.sampling = {.temperature = 0}, .max_new_tokens = 12}};
  const std::vector<int32_t> prompt = some_tokens(9, 3);
  const Completion half = generate(twins.half, {prompt}, options)[0];
  const Completion wide = generate(twins.wide, {prompt}, options)[0];
  EXPECT_EQ(half.token_ids, wide.token_ids);
  for (size_t i = 0; i < wide.logps.size(); ++i)
    EXPECT_NEAR(half.logps[i], wide.logps[i], 1e-4) << i;
}

std::string family_name(const testing::TestParamInfo<Family>& info) {
  switch (info.param) {
    case Family::kLlama: return "llama";
    case Family::kMistral: return "mistral";
    case Family::kQwen2: return "qwen2";
    case Family::kQwen3: return "qwen3";
    case Family::kPhi3: return "phi3";
    case Family::kGemma2: return "gemma2";
    case Family::kGemma3: return "gemma3";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Families, Bfloat16,
                         testing::Values(Family::kLlama, Family::kMistral, Family::kQwen2,
                                         Family::kQwen3, Family::kPhi3, Family::kGemma2,
                                         Family::kGemma3),
                         family_name);

}  // namespace
}  // namespace retort::models::bfloat16
