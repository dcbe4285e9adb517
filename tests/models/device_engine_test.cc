// The engine with its model on a device, as far as that can be seen without one: on a stand-in
// whose memory the host cannot read, against the same engine on the CPU.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "tests/losses/stand_in_device.h"
#include "tests/models/engine_support.h"

namespace retort::models {
namespace {

using test::stand_in_device;

// A model of the family with everything that its layers may have.
ModelConfig rich_config() {
  ModelConfig config = engine_config();
  config.family = Family::kQwen3;
  config.qk_norm = true;
  config.sliding_window = {0, 12};
  config.tie_word_embeddings = true;
  return config;
}

struct Pair {
  explicit Pair(const ModelConfig& config, at::ScalarType dtype = at::kFloat)
      : host(Decoder::random(config, 7, dtype)),
        device(Decoder::random(config, 7, dtype, {}, stand_in_device())) {}
  Decoder host, device;
};

GenerationRequest sampled(size_t prompts, int64_t num_generations, int64_t max_new_tokens) {
  return {.prompts = engine_prompts(prompts),
          .num_generations = num_generations,
          .draw = {.sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 11},
                   .max_new_tokens = max_new_tokens}};
}

void expect_same_draws(const std::vector<Completion>& device, const std::vector<Completion>& host,
                       double tolerance) {
  ASSERT_EQ(device.size(), host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    ASSERT_EQ(device[i].token_ids, host[i].token_ids) << i;
    EXPECT_EQ(device[i].finish_reason, host[i].finish_reason) << i;
    for (size_t t = 0; t < host[i].logps.size(); ++t) {
      EXPECT_NEAR(device[i].logps[t], host[i].logps[t], tolerance) << i << " " << t;
      EXPECT_NEAR(device[i].sampling_logps[t], host[i].sampling_logps[t], tolerance)
          << i << " " << t;
    }
  }
}

// 1,000 draws; prompts come in pieces, samples share them, and there are more than have a place.
TEST(DeviceEngine, DrawsTheTokensOfTheCpu) {
  const Pair pair(engine_config());
  const GenerationRequest request = sampled(10, 5, 20);
  const EngineOptions options{.num_blocks = 24, .max_tokens_per_step = 48, .max_sequences = 16};
  Engine on_device(pair.device, options);
  const int64_t operators = test::stand_in_operators();
  const auto drawn = on_device.run(request);
  EXPECT_GT(test::stand_in_operators(), operators);
  EXPECT_GT(on_device.stats().reused_tokens + on_device.stats().preemptions, 0);
  expect_same_draws(drawn, Engine(pair.host, options).run(request), 1e-4);
}

TEST(DeviceEngine, KnowsHeadNormsWindowsAndTiedHeads) {
  const Pair pair(rich_config());
  const GenerationRequest request = sampled(4, 2, 12);
  for (const EngineOptions& options :
       {EngineOptions{.num_blocks = 100},
        EngineOptions{.num_blocks = 100, .max_tokens_per_step = 7, .max_sequences = 3}})
    expect_same_draws(Engine(pair.device, options).run(request),
                      Engine(pair.host, options).run(request), 1e-4);
}

// Partial rotation; output norms, two rotary embeddings, capped scores and logits.
TEST(DeviceEngine, KnowsPhi3AndGemma) {
  for (const Family family : {Family::kPhi3, Family::kGemma2, Family::kGemma3}) {
    ModelConfig config = engine_config();
    config.family = family;
    apply_family(config);
    config.sliding_window = {12, 0};
    if (family == Family::kPhi3) config.rope.partial_rotary_factor = 0.5;
    if (family == Family::kGemma2)
      config.attn_logit_softcapping = 2, config.final_logit_softcapping = 4;
    if (family == Family::kGemma3) config.sliding_rope = Rope{.theta = 100.0};
    if (config.output_norms) config.query_pre_attn_scalar = 11;
    const Pair pair(config);
    const GenerationRequest request = sampled(4, 2, 12);
    for (const int64_t tokens : {256, 7})
      expect_same_draws(
          Engine(pair.device,
                 {.num_blocks = 100, .max_tokens_per_step = tokens, .max_sequences = 7})
              .run(request),
          Engine(pair.host, {.num_blocks = 100}).run(request), 1e-4);
  }
}

// Biases are zero in a model that was made at random.
TEST(DeviceEngine, AddsBiases) {
  ModelConfig config = engine_config();
  config.family = Family::kQwen2;
  config.attention_bias = true;
  const Pair pair(config);
  const at::NoGradGuard no_grad;
  const auto host = pair.host.parameters(), device = pair.device.parameters();
  int64_t biases = 0;
  for (size_t i = 0; i < host.size(); ++i)
    if (host[i].name.ends_with(".bias")) {
      ++biases;
      host[i].value.detach().uniform_(-0.5, 0.5);
      device[i].value.detach().copy_(host[i].value);
    }
  EXPECT_GT(biases, 0);
  const GenerationRequest request = sampled(3, 2, 10);
  expect_same_draws(Engine(pair.device, {.num_blocks = 50}).run(request),
                    Engine(pair.host, {.num_blocks = 50}).run(request), 1e-4);
}

// Weights are read where they lie, or bound again.
TEST(DeviceEngine, FollowsWeightsThatChange) {
  const Pair pair(engine_config());
  const GenerationRequest request = sampled(3, 1, 8);
  Engine on_device(pair.device, {.num_blocks = 50}), on_host(pair.host, {.num_blocks = 50});
  const auto before = on_device.run(request);
  for (const Decoder* decoder : {&pair.host, &pair.device})
    for (const auto& parameter : decoder->parameters())
      parameter.value.set_data(parameter.value.detach() * 1.25);
  on_device.weights_changed();
  on_host.weights_changed();
  const auto after = on_device.run(request);
  expect_same_draws(after, on_host.run(request), 1e-4);
  EXPECT_NE(after[0].token_ids, before[0].token_ids);
}

// In bf16 the CPU computes states in fp32, a device does not: near, not equal.
TEST(DeviceEngine, KeepsBfloat16NearTheCpu) {
  const Pair pair(engine_config(), at::kBFloat16);
  GenerationRequest request = sampled(4, 1, 1);
  request.draw.sampling = {.temperature = 0};
  const auto device = Engine(pair.device, {.num_blocks = 50}).run(request);
  const auto host = Engine(pair.host, {.num_blocks = 50}).run(request);
  for (size_t i = 0; i < host.size(); ++i)
    EXPECT_NEAR(device[i].logps[0], host[i].logps[0], 0.1) << i;
}

// What goes to the host in a step: states of the rows that draw, and their logits.
TEST(DeviceEngine, CopiesStatesAndLogitsToTheHostAndNothingElse) {
  const Pair pair(engine_config());
  Engine engine(pair.device, {.num_blocks = 50});
  engine.submit(sampled(3, 1, 8));
  engine.step();  // the prompts
  for (int i = 0; i < 3; ++i) {
    const int64_t copies = test::stand_in_copies_to_host();
    engine.step();
    EXPECT_EQ(test::stand_in_copies_to_host() - copies, 2);
  }
}

TEST(DeviceEngine, CountsItsCache) {
  const Pair pair(engine_config()), half(engine_config(), at::kBFloat16);
  constexpr int64_t kTokens = 5 * 16, kHeads = 2, kDim = 16, kLayers = 2;
  EXPECT_EQ(Engine(pair.device, {.num_blocks = 5}).stats().kv_bytes,
            2 * kLayers * kTokens * kHeads * kDim * 4);
  EXPECT_EQ(Engine(half.device, {.num_blocks = 5}).stats().kv_bytes,
            2 * kLayers * kTokens * kHeads * kDim * 2);
}

}  // namespace
}  // namespace retort::models

int main(int argc, char** argv) {
  retort::test::stand_in_device();  // before LibTorch counts the devices
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
