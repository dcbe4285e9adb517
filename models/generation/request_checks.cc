#include "models/generation/request_checks.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace retort::models {
namespace {

// This is more than any cache holds, and a sum with it does not overflow.
constexpr int64_t kMaxNewTokens = int64_t{1} << 60;

template <class Value>
[[noreturn]] void refuse(const char* field, const Value& value, const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string("generation: ") + field + " must be " + expected)
      .with(field, value);
}

template <class Value>
void expect(bool fine, const char* field, const Value& value, const std::string& expected) {
  if (!fine) refuse(field, value, expected);
}

void check_ids(const std::vector<int32_t>& prompt, size_t index, int64_t vocab_size) {
  for (const int32_t id : prompt) {
    if (id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  "generation: a prompt has a token id outside the vocabulary")
          .with("prompt", index)
          .with("id", id)
          .with("vocab_size", vocab_size);
    }
  }
}

void check_prompt(const GenerationRequest& request, size_t index, const ModelConfig& config,
                  const EngineOptions& options, int64_t num_blocks) {
  const std::vector<int32_t>& prompt = request.prompts[index];
  expect(!prompt.empty(), "prompt", index, "at least one token long");
  check_ids(prompt, index, config.vocab_size);
  const int64_t new_tokens = request.max_new_tokens_of_prompt.empty()
                                 ? request.draw.max_new_tokens
                                 : request.max_new_tokens_of_prompt[index];
  expect(new_tokens >= 1, "max_new_tokens", new_tokens, "at least 1");
  expect(request.draw.min_new_tokens <= new_tokens, "min_new_tokens", request.draw.min_new_tokens,
         "at most max_new_tokens, " + std::to_string(new_tokens));

  // The whole sequence must fit the model's positions, and the cache even when it is alone.
  const auto length = static_cast<int64_t>(prompt.size());
  const int64_t tokens = length + std::min(new_tokens, kMaxNewTokens);
  const auto too_long = [&](const char* limit, int64_t value, const char* advice) {
    throw Error(ErrorCode::kInvalidArgument,
                "generation: prompt " + std::to_string(index) + " of " +
                    std::to_string(prompt.size()) + " tokens with " + std::to_string(new_tokens) +
                    " new ones exceeds " + limit + " " + std::to_string(value) + "; " + advice)
        .with("prompt", index);
  };
  if (config.max_position_embeddings > 0 && tokens > config.max_position_embeddings) {
    too_long("the model's max_position_embeddings", config.max_position_embeddings,
             "shorten it or lower max_new_tokens");
  }
  // Keys in the cache keep the rotation that they came in with, so a rotary embedding that changes
  // with the length would make them wrong.
  for (const Rope* rope : {&config.rope, config.sliding_rope ? &*config.sliding_rope : nullptr})
    if (rope != nullptr && rope->fixed_length() > 0 && tokens > rope->fixed_length())
      too_long(("the length up to which rope type '" + rope->type + "' rotates alike,").c_str(),
               rope->fixed_length(), "shorten it or lower max_new_tokens");
  const int64_t capacity = num_blocks * options.block_tokens;
  if (tokens > capacity) {
    too_long("the KV cache's tokens", capacity,
             "raise kv_cache_bytes or num_blocks, or lower max_new_tokens");
  }
}

}  // namespace

void SamplingOptions::validate() const {
  expect(temperature == 0 || (temperature >= 1e-3 && std::isfinite(temperature)), "temperature",
         temperature, "0 (greedy) or at least 0.001");
  expect(top_p > 0 && top_p <= 1, "top_p", top_p, "above 0 and at most 1");
  expect(top_k >= 0, "top_k", top_k, "0 (off) or positive");
  expect(min_p >= 0 && min_p <= 1, "min_p", min_p, "from 0 to 1");
  expect(repetition_penalty > 0 && std::isfinite(repetition_penalty), "repetition_penalty",
         repetition_penalty, "positive (1: off)");
  expect(typical_p > 0 && typical_p <= 1, "typical_p", typical_p, "above 0 and at most 1");
  const auto in_range = [](double penalty) { return penalty >= -2 && penalty <= 2; };
  expect(in_range(presence_penalty), "presence_penalty", presence_penalty, "from -2 to 2 (0: off)");
  expect(in_range(frequency_penalty), "frequency_penalty", frequency_penalty,
         "from -2 to 2 (0: off)");
  if (temperature == 0) {
    expect(top_p == 1, "top_p", top_p, "1 with temperature 0, where it has no effect");
    expect(top_k == 0, "top_k", top_k, "0 with temperature 0, where it has no effect");
    expect(min_p == 0, "min_p", min_p, "0 with temperature 0, where it has no effect");
    expect(typical_p == 1, "typical_p", typical_p, "1 with temperature 0, where it has no effect");
  }
}

void EngineOptions::validate() const {
  expect(block_tokens >= 16 && block_tokens % 16 == 0, "block_tokens", block_tokens,
         "a positive multiple of 16");
  expect(num_blocks >= 0, "num_blocks", num_blocks, "0 (from kv_cache_bytes) or positive");
  expect(num_blocks > 0 || kv_cache_bytes > 0, "kv_cache_bytes", kv_cache_bytes, "positive");
  expect(max_sequences >= 1, "max_sequences", max_sequences, "at least 1");
  expect(max_tokens_per_step >= max_sequences, "max_tokens_per_step", max_tokens_per_step,
         "at least max_sequences");
}

void check_request(const GenerationRequest& request, const ModelConfig& config,
                   const EngineOptions& options, int64_t num_blocks, bool has_detokenizer) {
  request.draw.sampling.validate();
  expect(!request.prompts.empty(), "prompts", 0, "at least one");
  expect(request.num_generations >= 1, "num_generations", request.num_generations, "at least 1");
  const size_t completions = request.prompts.size() * static_cast<size_t>(request.num_generations);
  expect(request.sample_ids.empty() || request.sample_ids.size() == completions, "sample_ids",
         request.sample_ids.size(),
         "empty, or one for each of the " + std::to_string(completions) + " completions");
  expect(request.max_new_tokens_of_prompt.empty() ||
             request.max_new_tokens_of_prompt.size() == request.prompts.size(),
         "max_new_tokens_of_prompt", request.max_new_tokens_of_prompt.size(),
         "empty, or one for each prompt");
  expect(request.draw.min_new_tokens >= 0, "min_new_tokens", request.draw.min_new_tokens,
         "0 (off) or positive");
  for (const std::string& stop : request.draw.stop)
    expect(!stop.empty(), "stop", stop, "strings of at least one character");
  expect(request.draw.stop.empty() || has_detokenizer, "stop", request.draw.stop.size(),
         "empty for an engine without a detokenizer");
  for (size_t i = 0; i < request.prompts.size(); ++i)
    check_prompt(request, i, config, options, num_blocks);
}

}  // namespace retort::models
