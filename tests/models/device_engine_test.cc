// The engine with its model on a device, as far as that can be seen without one: on a stand-in
// whose memory the host cannot read, against the same engine on the CPU. It is run with ATen's
// operators alone (models_device_engine_test) and with the emulated kernels
// (emulated_engine_test.cc).
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/losses/stand_in_device.h"
#include "tests/losses/stand_in_operators.h"
#include "tests/models/engine_support.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::stand_in_device;

bool has_kernels() { return kernels::device_kernels(stand_in_device()) != nullptr; }

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

// Draws that need a row of logits alone, which kernels do where there are any.
GenerationRequest drawn_by_temperature(size_t prompts, int64_t num_generations,
                                       int64_t max_new_tokens) {
  return {.prompts = engine_prompts(prompts),
          .num_generations = num_generations,
          .draw = {.sampling = {.temperature = 0.9, .min_p = 0.01, .num_ids = 290, .seed = 11},
                   .max_new_tokens = max_new_tokens}};
}

// Others, which the host does.
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

// As above, by temperature and min_p alone.
TEST(DeviceEngine, DrawsByTemperatureTheTokensOfTheCpu) {
  const Pair pair(engine_config());
  const GenerationRequest request = drawn_by_temperature(10, 5, 20);
  const EngineOptions options{.num_blocks = 24, .max_tokens_per_step = 48, .max_sequences = 16};
  Engine on_device(pair.device, options);
  const auto drawn = on_device.run(request);
  EXPECT_GT(on_device.stats().reused_tokens + on_device.stats().preemptions, 0);
  expect_same_draws(drawn, Engine(pair.host, options).run(request), 1e-4);
}

TEST(DeviceEngine, TakesTheMostProbableTokensOfTheCpu) {
  const Pair pair(engine_config());
  GenerationRequest request = sampled(4, 1, 12);
  request.draw.sampling = {.temperature = 0};
  expect_same_draws(Engine(pair.device, {.num_blocks = 50}).run(request),
                    Engine(pair.host, {.num_blocks = 50}).run(request), 1e-4);
}

// End tokens are barred at first, and drawn on the host; requests of both kinds share steps.
TEST(DeviceEngine, DrawsInBothPlacesInOneStep) {
  const Pair pair(engine_config());
  const EngineOptions options{.num_blocks = 60, .max_sequences = 16, .merge_requests = true};
  GenerationRequest barred = drawn_by_temperature(3, 2, 12);
  barred.draw.min_new_tokens = 5;
  barred.draw.eos_token_ids = {3, 5, 8, 13, 21, 34, 55, 89, 144, 233};
  const std::vector<GenerationRequest> requests{
      drawn_by_temperature(2, 2, 10), sampled(3, 1, 14), barred,
      drawn_by_temperature(1, 1, 8),  sampled(1, 2, 11), drawn_by_temperature(2, 1, 9)};
  const auto completions_of = [&](const Decoder& decoder) {
    Engine engine(decoder, options);
    std::vector<uint64_t> numbers;
    for (const GenerationRequest& request : requests)
      numbers.push_back(engine.submit(request));
    while (engine.step()) {
    }
    std::vector<Completion> all;
    for (const uint64_t number : numbers)
      for (Completion& completion : engine.take(number))
        all.push_back(std::move(completion));
    return all;
  };
  expect_same_draws(completions_of(pair.device), completions_of(pair.host), 1e-4);
}

// Heads that are decoded from their blocks where there are kernels, with a window of 20 tokens in
// one layer, more heads than one block of threads reads together, and prompts in pieces.
TEST(DeviceEngine, DecodesFromBlocks) {
  ModelConfig config = engine_config();
  config.head_dim = 64;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 1;
  config.sliding_window = {0, 20};
  const Pair pair(config);
  const GenerationRequest request = drawn_by_temperature(4, 2, 8);
  for (const int64_t tokens : {48, 19}) {
    const EngineOptions options{
        .num_blocks = 16, .max_tokens_per_step = tokens, .max_sequences = 5};
    expect_same_draws(Engine(pair.device, options).run(request),
                      Engine(pair.host, options).run(request), 1e-4);
  }
}

TEST(DeviceEngine, DecodesCappedScoresFromBlocks) {
  ModelConfig config = engine_config();
  config.family = Family::kGemma2;
  apply_family(config);
  config.head_dim = 64;
  config.sliding_window = {12, 0};
  config.attn_logit_softcapping = 2;
  config.final_logit_softcapping = 4;
  config.query_pre_attn_scalar = 40;
  const Pair pair(config);
  const GenerationRequest request = drawn_by_temperature(3, 2, 8);
  expect_same_draws(Engine(pair.device, {.num_blocks = 50}).run(request),
                    Engine(pair.host, {.num_blocks = 50}).run(request), 1e-4);
}

// A prompt of 700 tokens is more than one piece of a kernel.
TEST(DeviceEngine, DecodesLongSequences) {
  ModelConfig config = engine_config();
  config.head_dim = 64;
  config.max_position_embeddings = 1024;
  config.sliding_window = {0, 300};
  const Pair pair(config);
  GenerationRequest request = drawn_by_temperature(1, 1, 6);
  request.prompts = {engine_tokens(700, 5), engine_tokens(70, 6)};
  expect_same_draws(Engine(pair.device, {.num_blocks = 80}).run(request),
                    Engine(pair.host, {.num_blocks = 80}).run(request), 1e-4);
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

TEST(DeviceEngine, DecodesBfloat16NearTheCpu) {
  ModelConfig config = engine_config();
  config.head_dim = 64;
  const Pair pair(config, at::kBFloat16);
  GenerationRequest request = sampled(4, 1, 2);
  request.draw.sampling = {.temperature = 0};
  const auto device = Engine(pair.device, {.num_blocks = 50}).run(request);
  const auto host = Engine(pair.host, {.num_blocks = 50}).run(request);
  for (size_t i = 0; i < host.size(); ++i)
    for (size_t t = 0; t < 2 && device[i].token_ids[0] == host[i].token_ids[0]; ++t)
      EXPECT_NEAR(device[i].logps[t], host[i].logps[t], 0.1) << i << " " << t;
}

// What the host reads in each of three steps in which three sequences draw. It waits for no copy
// the other way.
std::vector<std::string> reads_of_steps(const Decoder& decoder, const GenerationRequest& request) {
  Engine engine(decoder, {.num_blocks = 50});
  engine.submit(request);
  engine.step();  // the prompts
  test::RecordedReads recorded;
  for (int i = 0; i < 3; ++i)
    engine.step();
  for (const std::string& copy : recorded.take_copies_to_device())
    EXPECT_FALSE(copy.starts_with("waits")) << copy;
  return recorded.take();
}

TEST(DeviceEngine, ReadsLogitsOfWhatTheHostDraws) {
  const Pair pair(engine_config());
  EXPECT_EQ(reads_of_steps(pair.device, sampled(3, 1, 8)),
            std::vector<std::string>(3, "copy Float[3, 300]"));
}

TEST(DeviceEngine, ReadsSixteenBytesOfWhatAKernelDraws) {
  const Pair pair(engine_config());
  const std::string read = has_kernels() ? "copy Int[3, 4]" : "copy Float[3, 300]";
  EXPECT_EQ(reads_of_steps(pair.device, drawn_by_temperature(3, 1, 8)),
            std::vector<std::string>(3, read));
}

// Each place has one product with the head and one read, though requests of both alternate.
TEST(DeviceEngine, ReadsOnceOfEachPlaceWhereRequestsAlternate) {
  const Pair pair(engine_config());
  Engine engine(pair.device, {.num_blocks = 60, .merge_requests = true});
  for (int i = 0; i < 3; ++i) {
    engine.submit(drawn_by_temperature(1, 1, 12));
    engine.submit(sampled(1, 1, 12));
  }
  engine.step();  // the prompts

  const std::vector<std::string> expected =
      has_kernels() ? std::vector<std::string>{"copy Int[3, 4]", "copy Float[3, 300]"}
                    : std::vector<std::string>{"copy Float[6, 300]"};
  test::RecordedReads recorded;
  for (int i = 0; i < 3; ++i) {
    engine.step();
    EXPECT_EQ(recorded.take(), expected);
    for (const std::string& copy : recorded.take_copies_to_device())
      EXPECT_FALSE(copy.starts_with("waits")) << copy;
  }
}

// Prompts attend to their own new keys; what is gathered, by an index_select of keys and one of
// values in each layer, is a cached beginning. A step has two more: of the embedding, and of the
// rows that are drawn from.
TEST(DeviceEngine, GathersCachedBeginningsAlone) {
  const Pair pair(engine_config());
  constexpr int64_t kLayers = 2;
  Engine on_device(pair.device, {.num_blocks = 50}), on_host(pair.host, {.num_blocks = 50});
  const auto gathers_of_a_step = [&] {
    test::RecordedOperators operators;
    on_device.step();
    return operators.take()["aten::index_select"] - 2;
  };
  const auto finish = [&](uint64_t number) {
    while (on_device.step()) {
    }
    return on_device.take(number);
  };

  // Prompts of 3, 20 and 37 tokens, of which nothing is there yet.
  const GenerationRequest first = sampled(3, 1, 2);
  uint64_t number = on_device.submit(first);
  EXPECT_EQ(gathers_of_a_step(), 0);
  expect_same_draws(finish(number), on_host.run(first), 1e-4);

  // Two blocks of the longest are cached now. New prompts stand before and behind it.
  GenerationRequest second = sampled(1, 1, 3);
  second.prompts = {engine_tokens(30, 99), engine_prompts(3)[2], engine_tokens(18, 98)};
  number = on_device.submit(second);
  EXPECT_EQ(gathers_of_a_step(), 2 * kLayers);
  EXPECT_EQ(on_device.stats().reused_tokens, 32);
  expect_same_draws(finish(number), on_host.run(second), 1e-4);
}

TEST(DeviceEngine, RefusesLogitsThatAreNotFinite) {
  const Pair pair(engine_config());
  for (const Decoder* decoder : {&pair.host, &pair.device})
    decoder->parameters().front().value.detach().fill_(std::nan(""));
  for (const Decoder* decoder : {&pair.host, &pair.device}) {
    Engine engine(*decoder, {.num_blocks = 50});
    test::expect_error(ErrorCode::kCorrupt, "not finite",
                       [&] { engine.run(drawn_by_temperature(1, 1, 3)); });
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
