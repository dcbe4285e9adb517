// What generation is asked for and what it answers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"

namespace retort::models {

// From logits to a token, in this order: repetition penalty, temperature, top_k, top_p, min_p,
// draw.
struct SamplingOptions {
  double temperature = 1.0;  // 0: the first most probable token, no draw
  // the smallest set of most probable tokens that reaches this mass; 1: off
  double top_p = 1.0;
  int64_t top_k = 0;  // the most probable tokens; 0: off
  // tokens of at least this share of the largest probability; 0: off
  double min_p = 0.0;
  // logits of tokens in prompt or completion: divided by it if positive, else multiplied
  double repetition_penalty = 1.0;
  // only ids below are drawn (padding rows of a head are not); 0: every row. Not a field
  int64_t num_ids = 0;
  uint64_t seed = 0;  // not a field of a recipe: the run's seed and step make it

  template <class V>
  void fields(V& visit) {
    visit("temperature", temperature, "0: greedy");
    visit("top_p", top_p,
          "sample from the smallest set of most probable tokens that reaches this mass");
    visit("top_k", top_k, "sample from this many most probable tokens; 0: off");
    visit("min_p", min_p,
          "sample from tokens of at least this share of the largest probability; 0: off");
    visit("repetition_penalty", repetition_penalty,
          "of tokens that stand in prompt or completion; 1: off");
  }
  // kInvalidArgument naming the field; also for a field that has no effect at temperature 0.
  void validate() const;
};

// The draw is the Gumbel maximum: argmax of log-probability + noise, the noise of a token being a
// function of (seed, sample id, position, token id) alone (base/random.h, random_gumbel), so that
// no draw depends on batch, order or engine.
struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;
  int64_t num_generations = 1;       // completions of each prompt
  std::vector<uint64_t> sample_ids;  // of each completion, for the noise; empty: 0, 1, ...
  SamplingOptions sampling;
  int64_t max_new_tokens = 256;
  // empty, or one for each prompt instead of max_new_tokens
  std::vector<int64_t> max_new_tokens_of_prompt;
  std::vector<int64_t> eos_token_ids;
  // ends a completion whose text contains one; needs an engine with a detokenizer
  std::vector<std::string> stop;
};

enum class FinishReason {
  kEos,  // an end token, which is the last of token_ids
  // a stop string; token_ids holds the tokens it was seen in, its end may lie inside the last
  kStop,
  kLength,     // max_new_tokens
  kCancelled,  // by cancel()
};

struct Completion {
  std::vector<int32_t> token_ids;  // without the prompt
  // of each token under the model: temperature 1, whole vocabulary, no penalty
  std::vector<float> logps;
  // under the distribution it was drawn from; 0 at temperature 0
  std::vector<float> sampling_logps;
  FinishReason finish_reason = FinishReason::kLength;
};

}  // namespace retort::models

namespace retort {
template <>
struct EnumNames<models::FinishReason> {
  static constexpr std::array<std::pair<std::string_view, models::FinishReason>, 4> values{
      {{"eos", models::FinishReason::kEos},
       {"stop", models::FinishReason::kStop},
       {"length", models::FinishReason::kLength},
       {"cancelled", models::FinishReason::kCancelled}}};
};
}  // namespace retort
