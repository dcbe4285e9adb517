// Reads the answer of SGLang's /generate while it arrives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engines/contract/drawn_tokens.h"
#include "engines/sglang/input_rows.h"
#include "engines/wire/base64.h"
#include "engines/wire/json_stream.h"

namespace retort::engines::sglang {

// The question that an answer must belong to.
struct Expected {
  std::string rid;
  int64_t prompt_tokens = 0;
  std::string weight_version;  // empty: any
};

// Fields that are not wanted are passed over, and may be what they will.
// Errors: kCorrupt for what is no JSON and for numbers that cannot be, kMismatch for the answer to
//   another question, kUnavailable where the server gave the request up. They name the field.
// Memory: the lists of what was drawn; flat numbers as bytes; no other text is held.
class GenerateReader final : private JsonHandler {
 public:
  // `max_drawn`: more drawn tokens are an error. `rows`: for a score, and outlives the reader; else
  // null.
  GenerateReader(Expected expected, int64_t max_drawn, InputRows* rows);

  void add(std::string_view piece) { reader_.add(piece); }
  // The answer was complete, and has what every answer has.
  void end();

  DrawnTokens drawn;
  // May be called after end(); nullopt unless the server sent the flat form.
  std::optional<FlatTop> flat_top();

 private:
  // The place in the answer where something stands.
  enum class Place {
    kOutside,
    kAnswer,       // {"output_ids": ..., "meta_info": ...}
    kOutputIds,    // [...]
    kMeta,         // {"id": ..., "finish_reason": ..., "input_token_logprobs": ...}
    kFinish,       // {"type": ..., "matched": ...}
    kMatchedIds,   // [...]
    kInputList,    // [[null, ID, null], ...]
    kOutputList,   // [[LOGPROB, ID, null], ...]
    kTopList,      // [null, [[LOGPROB, ID, null], ...], ...]
    kTopRow,       // [[LOGPROB, ID, null], ...]
    kInputEntry,   // [LOGPROB, ID, null]
    kOutputEntry,  // [LOGPROB, ID, null]
    kTopEntry,     // [LOGPROB, ID, null]
    kShape,        // [ROWS, K]
    kIgnored,
  };

  void begin_object() override;
  void end_object() override;
  void begin_array() override;
  void end_array() override;
  void key(std::string_view name) override;
  void string(std::string_view text) override;
  void string_piece(std::string_view piece) override;
  void number(double value) override;
  void boolean(bool value) override;
  void null() override;

  Place object_within(Place place) const;
  Place array_within(Place place) const;
  bool in_entry() const;
  void entry_ended(Place place);
  void drawn_entry();
  void check_finish() const;
  void refuse_kind(const std::string& kind) const;

  const Expected expected_;
  const size_t max_drawn_;
  InputRows* const rows_;
  JsonReader reader_;
  std::vector<Place> places_{Place::kOutside};
  std::string key_;
  Entry entry_;
  int num_elements_ = 0;  // of the entry
  bool has_output_ids_ = false, has_input_ = false, has_output_ = false, has_top_ = false;
  bool has_flat_ = false;
  std::string id_, weight_version_, finish_message_;
  int64_t prompt_tokens_ = -1;
  FlatTop flat_;
  Base64Bytes flat_values_, flat_ids_;
};

}  // namespace retort::engines::sglang
