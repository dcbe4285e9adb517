// Reads the answer of vLLM's /v1/completions while it arrives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/contract/drawn_tokens.h"
#include "engines/vllm/prompt_rows.h"
#include "engines/wire/json_stream.h"

namespace retort::engines::vllm {

// Fields that are not wanted are passed over, and may be what they will.
// Errors: kCorrupt for what is no JSON and for numbers that cannot be, kMismatch for the answer to
//   another question: more than one choice, other prompt ids. They name the field.
// Memory: the lists above; a text is never held.
class CompletionReader final : private JsonHandler {
 public:
  // `prompt`: the ids that were sent. `max_drawn`: more drawn tokens are an error.
  // `rows`: for a score, and outlives the reader; else null.
  CompletionReader(std::vector<int32_t> prompt, int64_t max_drawn, PromptRows* rows);

  void add(std::string_view piece) { reader_.add(piece); }
  // The answer was complete, and has what every answer has.
  void end();

  DrawnTokens drawn;

 private:
  // The place in the answer where something stands.
  enum class Place {
    kOutside,
    kAnswer,         // {"choices": ...}
    kChoices,        // [...]
    kChoice,         // {"token_ids": ..., "logprobs": ..., "prompt_logprobs": ...}
    kTokenIds,       // [...]
    kPromptIds,      // [...]
    kLogProbs,       // {"tokens": ..., "token_logprobs": ...}
    kNames,          // [...]
    kTokenLogProbs,  // [...]
    kRows,           // [null, {...}, ...]
    kRow,            // {"ID": ...}
    kEntry,          // {"logprob": ..., "rank": ...}
    kIgnored,
  };

  void begin_object() override;
  void end_object() override;
  void begin_array() override;
  void end_array() override;
  void key(std::string_view name) override;
  void string(std::string_view text) override;
  void number(double value) override;
  void boolean(bool value) override;
  void null() override;

  Place object_within(Place place) const;
  Place array_within(Place place) const;
  void prompt_id(double value);
  void name_of_token(std::string_view text);
  void refuse_kind(const std::string& kind) const;

  const std::vector<int32_t> prompt_;
  const size_t max_drawn_;
  PromptRows* const rows_;
  JsonReader reader_;
  std::vector<Place> places_{Place::kOutside};
  std::string key_;
  int num_choices_ = 0;
  size_t num_prompt_ids_ = 0;
  bool has_token_ids_ = false;
  bool has_rows_ = false;
};

}  // namespace retort::engines::vllm
