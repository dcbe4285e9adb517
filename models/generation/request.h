// What generation is asked for and what it answers.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"

namespace retort::models {

// From logits to a token, in this order: repetition penalty, frequency and presence penalty,
// temperature, top_k, top_p, min_p, typical_p, draw. The texts of fields() say what each does.
// num_ids and seed are no fields of a recipe: its run sets them.
struct SamplingOptions {
  double temperature = 1.0;  // 0: the first most probable token, no draw
  double top_p = 1.0;
  int64_t top_k = 0;
  double min_p = 0.0;
  double typical_p = 1.0;  // Meister et al. 2022, as transformers' TypicalLogitsWarper
  double repetition_penalty = 1.0;
  // of tokens of the completion alone, as OpenAI and vLLM define them
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  int64_t num_ids = 0;  // only ids below are drawn (padding rows of a head are not); 0: every row
  uint64_t seed = 0;

  template <class V>
  void fields(V& visit) {
    visit("temperature", temperature, "divides the logits before a token is drawn");
    visit("top_p", top_p,
          "draw from the smallest set of most probable tokens with this mass; 1: all");
    visit("top_k", top_k, "draw from this many most probable tokens; 0: all");
    visit(
        "min_p", min_p,
        "draw from tokens with at least this share of the most probable one's probability; 0: all");
    visit("typical_p", typical_p,
          "draw from the smallest set with this mass of tokens that say about as much as is "
          "expected (-log p next to the entropy); 1: all");
    visit("repetition_penalty", repetition_penalty,
          "divides positive and multiplies negative logits of tokens in prompt or completion; "
          "1: off");
    visit("presence_penalty", presence_penalty,
          "is taken off the logit of each token that the completion has; -2 to 2, 0: off");
    visit("frequency_penalty", frequency_penalty,
          "is taken off the logit of a token for each time that the completion has it; -2 to 2, "
          "0: off");
  }
  template <class A>
  void serialize(A& archive) {
    archive(temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty,
            frequency_penalty, top_k, num_ids, seed);
  }
  // True when no token is left out and none is penalised: only the temperature applies.
  bool is_whole() const {
    return top_p == 1 && top_k == 0 && min_p == 0 && typical_p == 1 && repetition_penalty == 1 &&
           !penalises_generated();
  }
  bool penalises_generated() const { return presence_penalty != 0 || frequency_penalty != 0; }
  // kInvalidArgument naming the field; also for a field that has no effect at temperature 0.
  void validate() const;
};

// How completions are drawn and where they end.
struct DrawOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 256;
  // No end or stop token is drawn before this many tokens (as transformers' MinNewTokensLength
  // processor), and a stop text that stands in them ends nothing (as vLLM).
  int64_t min_new_tokens = 0;
  std::vector<int64_t> eos_token_ids;
  // ends a completion whose text contains one; needs an engine with a detokenizer
  std::vector<std::string> stop;
  // end a completion as a stop text does: special tokens, which are no part of a text (stop_text.h)
  std::vector<int64_t> stop_token_ids;

  template <class A>
  void serialize(A& archive) {
    archive(max_new_tokens, min_new_tokens, sampling, eos_token_ids, stop, stop_token_ids);
  }
  // End tokens, then stop tokens: whatever ends a completion when it is drawn.
  std::vector<int64_t> end_ids() const {
    std::vector<int64_t> ids = eos_token_ids;
    ids.insert(ids.end(), stop_token_ids.begin(), stop_token_ids.end());
    return ids;
  }
};

// The draw is the Gumbel maximum: argmax of log-probability + noise, the noise of a token being a
// function of (seed, sample id, position, token id) alone (base/random.h, random_gumbel), so that
// no draw depends on batch, order or engine. Positions count from the prompt's first token, so a
// prompt that ends with the first tokens of a completion, with its sample id, is drawn on with the
// bits that the whole one has; only presence and frequency penalties, min_new_tokens and stop texts
// look at tokens of the request alone.
struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;
  int64_t num_generations = 1;       // completions of each prompt
  std::vector<uint64_t> sample_ids;  // of each completion, for the noise; empty: 0, 1, ...
  DrawOptions draw;
  // empty, or one for each prompt instead of draw.max_new_tokens
  std::vector<int64_t> max_new_tokens_of_prompt;
};

enum class FinishReason {
  kEos,  // an end token, which is the last of token_ids
  // a stop string or a stop token; token_ids holds the tokens it was seen in, a string's end may
  // lie inside the last
  kStop,
  kLength,     // max_new_tokens
  kCancelled,  // by cancel()
};

// Whose a run of tokens of a completion is.
enum class SpanSource : uint8_t {
  kModel,
  kEnvironment,  // what answered the model: tokens without a probability, and no targets
  kPrompt,       // what an episode began with, where its environment wrote it: before all others
};
struct Span {
  SpanSource source = SpanSource::kModel;
  uint64_t weight_version = 0;  // that drew the model's tokens; of others 0
  int64_t tokens = 0;           // at least 1

  bool operator==(const Span&) const = default;
};

struct Completion {
  std::vector<int32_t> token_ids;  // without the prompt
  // Whose they are, one run after the other; their tokens add up to those of token_ids. Empty: all
  // are the model's, drawn with the version of the whole answer.
  std::vector<Span> spans;
  // Of an episode: what it came to, a JSON object (roles/episodes); else empty.
  std::string episode;
  // of each token under the model: temperature 1, whole vocabulary, no penalty; 0 where a token is
  // not the model's. Empty if an engine that is not ours does not say.
  std::vector<float> logps;
  // under the distribution it was drawn from; 0 at temperature 0. Empty as logps may be.
  std::vector<float> sampling_logps;
  FinishReason finish_reason = FinishReason::kLength;
  // Tokens of the prompt whose keys and values were still in the cache; not in answers of remote
  // generators, nor of engines that are not ours.
  std::optional<int64_t> reused_tokens;
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
