// Against transformers: goldens/ were made by make_goldens.py.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/engine.h"
#include "models/generation/generate.h"
#include "models/ops/rope.h"
#include "models/safetensors/safetensors.h"
#include "tests/models/golden.h"
#include "tests/models/small_model.h"

namespace retort::models {
namespace {

std::vector<int32_t> row(const at::Tensor& ids) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < ids.size(0); ++i)
    out.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
  return out;
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// Log-probabilities of the next token, per sequence, concatenated.
at::Tensor next_logps(const Decoder& decoder, const PackedTokens& tokens) {
  const at::Tensor all = at::log_softmax(decoder.logits(decoder.hidden(tokens)), -1);
  std::vector<at::Tensor> parts;
  for (size_t s = 0; s + 1 < tokens.cu_seqlens.size(); ++s) {
    const int64_t begin = tokens.cu_seqlens[s];
    const int64_t length = tokens.cu_seqlens[s + 1] - begin;
    if (length < 2) continue;
    const at::Tensor targets = tokens.input_ids.narrow(0, begin + 1, length - 1).unsqueeze(1);
    parts.push_back(all.narrow(0, begin, length - 1).gather(1, targets).squeeze(1));
  }
  return at::cat(parts);
}

struct Golden {
  explicit Golden(const std::string& name)
      : decoder(load_decoder(golden_folder(name), at::kFloat)),
        reference(golden_folder(name) / "reference.safetensors") {}
  std::vector<std::vector<int32_t>> rows() const {
    return {row(reference.get("ids_0")), row(reference.get("ids_1"))};
  }
  at::Tensor logps() const { return at::cat({reference.get("logps_0"), reference.get("logps_1")}); }
  Decoder decoder;
  SafetensorsReader reference;
};

// The largest relative difference of a parameter's gradient by norm, and its name.
std::pair<double, std::string> worst_gradient(const Golden& golden) {
  std::pair<double, std::string> worst{0, ""};
  for (const auto& [name, value, shard] : golden.decoder.parameters()) {
    const at::Tensor expected = golden.reference.get("grad." + name);
    if (!value.grad().defined()) return {INFINITY, name};
    const double difference =
        ((value.grad() - expected).norm() / expected.norm().clamp_min(1e-6)).item<double>();
    if (!(difference <= worst.first)) worst = {difference, name};
  }
  return worst;
}

class Parity : public testing::TestWithParam<const char*> {
 protected:
  Golden golden{GetParam()};
};

TEST_P(Parity, InverseFrequencies) {
  const ModelConfig& config = golden.decoder.config();
  const at::Tensor mine = rope_inverse_frequencies(config.rope, config.head_dim);
  EXPECT_LT(((mine / golden.reference.get("inverse_frequencies")) - 1).abs().max().item<double>(),
            1e-6);
  ASSERT_EQ(config.sliding_rope.has_value(),
            golden.reference.contains("sliding_inverse_frequencies"));
  if (!config.sliding_rope) return;
  const at::Tensor sliding = rope_inverse_frequencies(*config.sliding_rope, config.head_dim);
  const at::Tensor expected = golden.reference.get("sliding_inverse_frequencies");
  EXPECT_LT((sliding / expected - 1).abs().max().item<double>(), 1e-6);
}

TEST_P(Parity, NextTokenLogProbabilities) {
  const at::Tensor logps = next_logps(golden.decoder, pack_rows(golden.rows()));
  EXPECT_LT(max_difference(logps, golden.logps()), 1e-4);
  const c10::InferenceMode inference;
  EXPECT_EQ(max_difference(next_logps(golden.decoder, pack_rows(golden.rows())), logps), 0);
}

TEST_P(Parity, GradientsOfEveryParameter) {
  for (const bool checkpointing : {false, true}) {
    Golden fresh(GetParam());
    fresh.decoder.set_requires_grad(true);
    fresh.decoder.set_gradient_checkpointing(checkpointing);
    const at::Tensor loss = -next_logps(fresh.decoder, pack_rows(fresh.rows())).mean();
    torch::autograd::backward({loss}, {});
    const auto [difference, name] = worst_gradient(fresh);
    EXPECT_LT(difference, 1e-5) << name << " checkpointing=" << checkpointing;
  }
}

TEST_P(Parity, GreedyTokensAreIdentical) {
  const GenerateOptions options{.draw = {.sampling = {.temperature = 0}, .max_new_tokens = 64}};
  const std::vector<int32_t> prompt = row(golden.reference.get("prompt"));
  const std::vector<int32_t> expected = row(golden.reference.get("greedy"));
  const std::vector<Completion> out = generate(golden.decoder, {prompt}, options);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].token_ids, expected);
  EXPECT_EQ(out[0].finish_reason, FinishReason::kLength);
  // Its log-probabilities are those of a full forward over prompt and completion.
  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), out[0].token_ids.begin(), out[0].token_ids.end());
  const at::Tensor logps = next_logps(golden.decoder, pack_rows({whole}))
                               .narrow(0, static_cast<int64_t>(prompt.size()) - 1, 64);
  for (int64_t i = 0; i < 64; ++i)
    EXPECT_NEAR(out[0].logps[static_cast<size_t>(i)], logps[i].item<float>(), 1e-4) << i;
}

TEST_P(Parity, PackedAndSingleAreTheSameNumbers) {
  const auto rows = golden.rows();
  const at::Tensor packed = golden.decoder.hidden(pack_rows(rows));
  const at::Tensor single = at::cat(
      {golden.decoder.hidden(pack_rows({rows[0]})), golden.decoder.hidden(pack_rows({rows[1]}))});
  EXPECT_LT(max_difference(packed, single), 2e-5)
      << "states are of size " << packed.abs().max().item<double>();
  const at::Tensor logps = at::cat({next_logps(golden.decoder, pack_rows({rows[0]})),
                                    next_logps(golden.decoder, pack_rows({rows[1]}))});
  EXPECT_LT(max_difference(next_logps(golden.decoder, pack_rows(rows)), logps), 1e-5);
}

// The prompt computed in pieces, and continued from blocks of the cache, gives the same tokens.
TEST_P(Parity, GreedyTokensInPieces) {
  const std::vector<int32_t> prompt = row(golden.reference.get("prompt"));
  const std::vector<int32_t> expected = row(golden.reference.get("greedy"));
  Engine engine(golden.decoder, {.num_blocks = 8, .max_tokens_per_step = 3, .max_sequences = 2});
  GenerationRequest request{.prompts = {prompt},
                            .draw = {.sampling = {.temperature = 0}, .max_new_tokens = 40}};
  const std::vector<int32_t> first = engine.run(request)[0].token_ids;
  EXPECT_EQ(first, std::vector<int32_t>(expected.begin(), expected.begin() + 40));
  request.prompts[0].insert(request.prompts[0].end(), first.begin(), first.end());
  request.draw.max_new_tokens = 24;
  EXPECT_EQ(engine.run(request)[0].token_ids,
            std::vector<int32_t>(expected.begin() + 40, expected.end()));
  EXPECT_EQ(engine.stats().reused_tokens, 32);
}

// The tolerances above see these mistakes.
TEST_P(Parity, DeliberateMistakesAreSeen) {
  PackedTokens running_on = pack_rows(golden.rows());
  // a shift: rotary angles are relative, so no change at all ...
  running_on.positions = at::arange(running_on.num_tokens());
  EXPECT_LT(max_difference(next_logps(golden.decoder, running_on), golden.logps()), 1e-3);
  PackedTokens doubled = pack_rows(golden.rows());
  doubled.positions = doubled.positions * 2;  // ... while wrong distances are
  EXPECT_GT(max_difference(next_logps(golden.decoder, doubled), golden.logps()), 1e-2);
  PackedTokens merged = pack_rows(golden.rows());
  merged.cu_seqlens = {0, merged.num_tokens()};  // the second sequence sees the first
  const auto first = static_cast<int64_t>(golden.rows()[0].size());
  const at::Tensor second =
      at::log_softmax(golden.decoder.logits(golden.decoder.hidden(merged)), -1)
          .narrow(0, first, 13);
  const at::Tensor chosen =
      second.gather(1, merged.input_ids.narrow(0, first + 1, 13).unsqueeze(1)).squeeze(1);
  EXPECT_GT(max_difference(chosen, golden.reference.get("logps_1")), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Parity, testing::ValuesIn(kGoldens),
                         [](const auto& info) { return std::string(info.param); });

// Each of these changes one fact of a family; the log-probabilities must leave the tolerance.
TEST(DeliberateMistake, InTheConfigIsSeen) {
  const std::vector<std::pair<const char*, std::function<void(ModelConfig&)>>> mistakes{
      {"mistral_window", [](ModelConfig& c) { c.sliding_window.assign(2, 10); }},
      {"mistral_window", [](ModelConfig& c) { c.sliding_window.assign(2, 0); }},
      {"qwen2_window_bf16",
       [](ModelConfig& c) {
         c.sliding_window = {7, 7, 7};
       }},
      {"qwen3_bias", [](ModelConfig& c) { std::swap(c.sliding_window[0], c.sliding_window[1]); }},
      {"llama3_rope", [](ModelConfig& c) { c.rope.type = "default"; }},
      {"llama_bias_linear", [](ModelConfig& c) { c.rope.factor = 1.0; }},
      {"llama", [](ModelConfig& c) { c.rms_norm_eps = 1e-2; }},
      {"qwen2", [](ModelConfig& c) { c.rope.theta = 1e6; }},

      // Rotary scalings, partial rotation, Gemma's norms, scores and caps.
      {"llama_yarn", [](ModelConfig& c) { c.rope.attention_factor = 1.0; }},
      {"llama_yarn", [](ModelConfig& c) { c.rope.beta_fast = 32.0; }},
      {"qwen3_yarn_mscale", [](ModelConfig& c) { c.rope.attention_factor = 1.2079441541679836; }},
      {"qwen3_yarn_mscale", [](ModelConfig& c) { c.rope.truncate = true; }},
      {"qwen3_yarn_mscale", [](ModelConfig& c) { c.rope.beta_slow = 2.0; }},
      {"llama_dynamic", [](ModelConfig& c) { c.rope.type = "default"; }},
      {"llama_dynamic", [](ModelConfig& c) { c.rope.factor = 4.0; }},
      {"phi3_partial", [](ModelConfig& c) { c.rope.partial_rotary_factor = 1.0; }},
      {"phi3_partial",
       [](ModelConfig& c) {
         c.sliding_window = {9, 0};
       }},
      {"phi3_longrope", [](ModelConfig& c) { c.rope.long_factor = c.rope.short_factor; }},
      {"phi3_longrope", [](ModelConfig& c) { c.rope.short_factor = c.rope.long_factor; }},
      {"phi3_longrope", [](ModelConfig& c) { c.rope.attention_factor = 1.0; }},
      {"gemma3", [](ModelConfig& c) { c.sliding_rope.reset(); }},
      {"gemma3", [](ModelConfig& c) { c.rope = *c.sliding_rope; }},
      {"gemma3", [](ModelConfig& c) { c.query_pre_attn_scalar = 0; }},
      {"gemma3", [](ModelConfig& c) { c.norm_unit_offset = false; }},
      {"gemma3", [](ModelConfig& c) { c.scaled_embedding = false; }},
      {"gemma3", [](ModelConfig& c) { c.activation = Activation::kSilu; }},
      {"gemma2", [](ModelConfig& c) { c.attn_logit_softcapping = 0; }},
      {"gemma2", [](ModelConfig& c) { c.attn_logit_softcapping = 4.0; }},
      {"gemma2", [](ModelConfig& c) { c.final_logit_softcapping = 0; }},
      {"gemma2", [](ModelConfig& c) { c.final_logit_softcapping = 6.0; }}};
  for (const auto& [name, make] : mistakes) {
    const Golden golden(name);
    ModelConfig config = golden.decoder.config();
    make(config);
    const Decoder wrong(config, tensors_of(golden.decoder));
    EXPECT_GT(max_difference(next_logps(wrong, pack_rows(golden.rows())), golden.logps()), 1e-3)
        << name;
  }
}

TEST(DeliberateMistake, PadEmbeddingWithGradientIsSeen) {
  Golden golden("qwen2");
  ModelConfig config = golden.decoder.config();
  ASSERT_EQ(config.pad_token_id, 5);
  config.pad_token_id = -1;
  golden.decoder = Decoder(config, tensors_of(golden.decoder));
  golden.decoder.set_requires_grad(true);
  torch::autograd::backward({-next_logps(golden.decoder, pack_rows(golden.rows())).mean()}, {});
  EXPECT_GT(worst_gradient(golden).first, 1e-4);
}

}  // namespace
}  // namespace retort::models
