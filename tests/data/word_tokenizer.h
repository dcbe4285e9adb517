// A tokenizer whose ids a test can write down: one id for each word, with or without a space before
// it, so that a word is never part of a token with the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/data/dataset.h"
#include "tests/support/temporary_folder.h"

namespace retort::test {

// Ids of the special tokens; the words w0, w1, ... have the ids kFirstWord + 0, + 1, ...
enum SpecialId : int32_t {
  kUnknown = 0,
  kBos = 1,
  kEos = 2,
  kSystem = 3,
  kUser = 4,
  kAssistant = 5,
  kEnd = 6,
  kFirstWord = 10
};
inline constexpr int32_t kNumWords = 90;
inline int32_t word(int32_t i) { return kFirstWord + i; }

struct TokenizerOptions {
  bool adds_bos = true;   // <s> in front
  bool adds_eos = false;  // and </s> behind, as some post-processors do
  bool has_eos = true;    // whether </s> is named eos_token
};
models::Tokenizer word_tokenizer(const std::filesystem::path& folder,
                                 const TokenizerOptions& options = {});

// <|role|>content<|end|> for each message; the assistant's content and <|end|> stand between
// generation marks.
inline constexpr std::string_view kMarkedTemplate =
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";
models::ChatTemplate chat_template(std::string_view source = kMarkedTemplate);

// A row of exactly `tokens` input_ids (at least 5), all targets, whose first words spell `id`.
std::string numbered_row(int64_t id, int64_t tokens);
// The id that a numbered_row's sample spells.
int64_t numbered_row_id(const data::Sample& sample);

// A dataset over numbered rows with these lengths; the numbers run through all sources.
data::Dataset numbered_dataset(const TemporaryFolder& folder,
                               const std::vector<std::vector<int64_t>>& lengths_by_source,
                               const std::vector<double>& weights = {},
                               const data::DataOptions& options = {});

}  // namespace retort::test
