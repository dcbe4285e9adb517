// The estimate against what a decoder really holds.
#include "models/memory/memory_estimate.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/decoder/decoder.h"
#include "models/generation/engine.h"
#include "tests/models/own_tensors.h"
#include "tests/support/memory/peak_memory.h"

namespace retort::models {
namespace {

ModelConfig config_of(Family family, bool tied) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 301;
  config.hidden_size = 96;
  config.intermediate_size = 160;
  config.num_hidden_layers = 5;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 24;
  config.max_position_embeddings = 512;
  config.sliding_window.assign(5, 0);
  config.tie_word_embeddings = tied;
  config.attention_bias = family == Family::kQwen2;
  config.attention_out_bias = family == Family::kLlama;
  config.mlp_bias = family == Family::kLlama;
  apply_family(config);
  if (family == Family::kGemma3) {
    config.sliding_rope = Rope{};
    config.sliding_window = {512, 0, 512, 0, 0};
  }
  return config;
}

constexpr Family kFamilies[]{Family::kLlama, Family::kQwen2, Family::kQwen3, Family::kPhi3,
                             Family::kGemma3};

// Logits whose gradients are kept need no chunk beside them; the others have one.
TEST(MemoryEstimate, CountsTheGradientsByLogitsThatAreKept) {
  ModelConfig config = config_of(Family::kQwen2, true);
  config.vocab_size = 4096;
  constexpr int64_t kTokens = 10'000;
  constexpr int64_t kChunk = 1 << 20;
  const int64_t all = kTokens * config.vocab_size * 4;
  const auto temporary = [&](int64_t kept) {
    return estimate_training_memory(
               config,
               {.tokens = kTokens, .loss = {.logits_bytes = kChunk, .kept_logits_bytes = kept}})
        .temporary;
  };
  EXPECT_GT(temporary(all / 4), temporary(0));
  EXPECT_EQ(temporary(all / 2) - temporary(all / 4), all / 4);
  EXPECT_EQ(temporary(2 * all) - temporary(all / 2), all / 2 - kChunk);
}

TEST(MemoryEstimate, StagesHoldTheModelsParameters) {
  for (const Family family : kFamilies)
    for (const bool tied : {false, true})
      for (const int64_t pp : {1, 2, 3}) {
        const ModelConfig config = config_of(family, tied);
        int64_t bytes = 0;
        for (int64_t stage = 0; stage < pp; ++stage)
          bytes +=
              estimate_training_memory(config, {.layout = {.pp = pp}, .stage = stage, .tokens = 8})
                  .parameters;
        const int64_t twice = tied && pp > 1 ? config.vocab_size * config.hidden_size : 0;
        EXPECT_EQ(bytes, 4 * (config.num_parameters() + twice));
      }
}

// What forward leaves, and what is planned of it, in bytes.
void expect_activations(const ModelConfig& config, at::ScalarType dtype, int64_t every) {
  Decoder decoder = Decoder::random(config, 1, dtype);
  decoder.set_requires_grad(true);
  decoder.set_gradient_checkpointing(every > 0, std::max<int64_t>(every, 1));
  const std::vector<int32_t> row(250, 7);
  PackedTokens tokens = pack_rows({row, row});
  if (config.classifies()) tokens.wanted = at::tensor(std::vector<int64_t>{249, 499}, at::kLong);
  const int64_t rows = config.classifies() ? 2 : 512;
  const test::PeakMemory memory;
  const at::Tensor hidden = decoder.hidden(tokens);
  const int64_t bytes = dtype == at::kFloat ? 4 : 2;
  const TrainingMemory estimate =
      estimate_training_memory(config, {.layout = {},
                                        .tokens = 500,
                                        .dtype_bytes = bytes,
                                        .gradient_checkpointing = every > 0,
                                        .gradient_checkpointing_every = std::max<int64_t>(every, 1),
                                        .sequences = 2});
  const auto measured = static_cast<double>(memory.live_bytes());
  EXPECT_NEAR(static_cast<double>(estimate.activations + rows * 96 * bytes), measured,
              0.02 * measured)
      << bytes << " bytes, one of " << every << " layers again";
}

TEST(MemoryEstimate, ActivationsAreWhatForwardLeaves) {
  for (const Family family : kFamilies)
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t every : {0, 1, 2})
        expect_activations(config_of(family, false), dtype, every);
}

// A classifier reads the last row of each sequence, and its last layer keeps little of the others.
TEST(MemoryEstimate, ActivationsOfAClassifierAreWhatForwardLeaves) {
  for (const Family family : {Family::kLlama, Family::kQwen3, Family::kGemma3})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t every : {0, 1})
        expect_activations(as_classifier(config_of(family, false), 1, -1), dtype, every);
}

// Masks of one window for two layers, and of another: of 250 x 250 tokens at the most.
TEST(MemoryEstimate, WindowsHaveMasks) {
  for (const int64_t window : {40, 140})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      ModelConfig config = config_of(Family::kQwen3, false);
      config.sliding_window = {window, window, 0, 90, 0};
      expect_activations(config, dtype, 0);
    }
}

// What `retort plan` says of a generator, but for the weights that arrive.
TEST(MemoryEstimate, AGeneratorIsItsWeightsAndItsCache) {
  constexpr int64_t kCache = 8 << 20;
  const ModelConfig config = config_of(Family::kQwen3, false);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const test::PeakMemory memory;
    const Decoder decoder = own_tensors(Decoder::random(config, 1, dtype));
    Engine engine(decoder, {.kv_cache_bytes = kCache});
    engine.run({.prompts = {{1, 2, 3}, {4, 5}}, .draw = {.max_new_tokens = 8}});
    const TrainingMemory plan =
        estimate_training_memory(config, {.tokens = 8, .dtype_bytes = dtype == at::kFloat ? 4 : 2});
    const auto measured = static_cast<double>(memory.live_bytes());
    EXPECT_NEAR(static_cast<double>(plan.parameters + kCache), measured, 0.05 * measured);
  }
}

TEST(MemoryEstimate, FollowsTheLayout) {
  const ModelConfig config = config_of(Family::kQwen3, false);
  const auto of = [&](const parallel::Layout& layout, int64_t micro_batches = 1) {
    return estimate_training_memory(
        config, {.layout = layout, .tokens = 512, .micro_batches = micro_batches});
  };
  const TrainingMemory whole = of({});
  const TrainingMemory zero = of({.dp = 2, .distributed_optimizer = true});
  EXPECT_EQ(zero.optimizer * 2, whole.optimizer);
  EXPECT_EQ(zero.gradients, whole.gradients);
  EXPECT_EQ(zero.activations, whole.activations);
  const TrainingMemory split = of({.tp = 2});
  const TrainingMemory sequence = of({.tp = 2, .sequence_parallel = true});
  EXPECT_LT(split.layer_bytes, whole.layer_bytes);
  // half of the rows of norms and residuals
  EXPECT_EQ(split.layer_bytes - sequence.layer_bytes, 256 * (4 * 96 + 2) * 4);
  // micro-batches in flight on the first stage
  EXPECT_EQ(of({.pp = 4}, 1).activations * 4, of({.pp = 4}, 8).activations);
  EXPECT_THROW(of({.tp = 8}), Error);
  EXPECT_THROW(estimate_training_memory(config, {.layout = {.pp = 2}, .stage = 2}), Error);
}

}  // namespace
}  // namespace retort::models
