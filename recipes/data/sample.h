// One training sample: tokens, which of them are targets, and where it came from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/data/options.h"

namespace retort::data {

// A row in the tokens of another tokenizer.
struct Reading {
  std::vector<int32_t> input_ids;
  std::vector<uint8_t> is_target;  // as Sample's
  // Of a completion that was drawn: how many of its tokens this is a reading of, from its beginning
  // on. What follows them is no text. -1: a row of the data, whose bytes must all be the same.
  int64_t drawn_tokens = -1;
};

struct Sample {
  std::vector<int32_t> input_ids;
  // same length; is_target[i]: the loss counts the prediction of input_ids[i] (i >= 1)
  std::vector<uint8_t> is_target;
  // other string/number columns of the row, for routing
  std::vector<std::pair<std::string, std::string>> fields;
  std::string origin;  // "train.jsonl:17"
  bool truncated = false;
  // a row of prompt and completion: the prompt alone has other tokens at its end than the row
  bool prompt_differs = false;
  // Of a completion that was drawn: the log-probability of each of its tokens, the row's last ones,
  // as its generator reported it; else empty.
  std::vector<float> drawn_logps;
  // What a teacher with another tokenizer reads of the same row; empty where nobody asked for it.
  Reading reading;
  int64_t num_targets() const;
  int64_t longest() const { return static_cast<int64_t>(input_ids.size()); }
};

// Its tokens [begin, end) as a sample of their own. Nothing predicts the first of them.
Sample part_of(const Sample& sample, int64_t begin, int64_t end);

// The place where the last run of targets begins, which is what was said last; the size without a
// target.
int64_t last_turn_begin(const std::vector<uint8_t>& is_target);

struct SampleOptions {
  int64_t max_length = 1024;
  bool completion_only_loss = true;
  bool assistant_only_loss = true;
  TruncationMode truncation_mode = TruncationMode::kKeepStart;
  // messages rows: whether the prompt of the last answer is compared as well (prompt_differs),
  // which takes another rendering
  bool compare_prompts = false;
};

// Turns one JSON line into a sample (formats: docs/data.md). kInvalidArgument naming `origin` for
// malformed JSON, missing or wrongly typed columns, an unknown format (listing the keys found), and
// a sample without targets.
Sample make_sample(std::string_view json_line, const std::string& origin, const Source& source,
                   const models::Tokenizer& tokenizer, const models::ChatTemplate& chat,
                   const SampleOptions& options);

// Refuses what make_sample refuses without a tokenizer: malformed JSON, columns that are missing or
// of another type. kInvalidArgument, which does not name the row.
void check_sample_row(std::string_view json_line, const Source& source);

// True if the row's texts are messages, which a chat template renders; false: strings, or ids.
// kInvalidArgument for a line that is no JSON object.
bool holds_messages(std::string_view json_line, const Source& source);

// The format that `auto` finds from a row's keys (after `columns`), or kInvalidArgument listing the
// keys.
Format detect_format(std::string_view json_line, const std::string& origin, const Source& source);

// A row's prompt for generation: its prompt tokens (with the generation prompt of the chat template
// where it is messages) and its reference answer text ("" if none).
struct PromptSample {
  std::vector<int32_t> prompt_ids;
  std::string prompt_text, reference;
  std::string question;  // what the user said last in a conversation, else the prompt
  bool is_chat = false;  // whether the chat template rendered the prompt
  std::string origin;
  // other string/number columns of the row, for rewards and routing
  std::vector<std::pair<std::string, std::string>> fields;
  // What an episode begins with, where it was asked for, else empty: all columns as a JSON object,
  // and the prompt's conversation as a JSON array.
  std::string row, messages;
};
// `for_episodes`: PromptSample::row and messages are set; kInvalidArgument for a prompt that is no
// conversation.
PromptSample make_prompt(std::string_view json_line, const std::string& origin,
                         const Source& source, const models::Tokenizer& tokenizer,
                         const models::ChatTemplate& chat, bool for_episodes = false);
// Refuses what make_prompt refuses without a tokenizer; as check_sample_row.
void check_prompt_row(std::string_view json_line, const Source& source);

}  // namespace retort::data
