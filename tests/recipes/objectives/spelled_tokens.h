// Rows and vocabularies that a test writes down token by token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "models/text/token_bytes.h"
#include "models/text/tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace retort::test {

// A tokenizer of sentencepiece's kind with these tokens, whose ids are their places: "▁" is a
// space, <0x0A> a byte, "<|...|>" a special token. `named`: what tokenizer_config.json says of
// eos_token and the like.
inline models::Tokenizer spelled_tokenizer(const TemporaryFolder& folder,
                                           const std::vector<std::string>& tokens,
                                           const std::string& named = "{}") {
  std::string vocabulary, added;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string token = json_quote(tokens[id]);
    vocabulary += (id > 0 ? "," : "") + token + ":" + std::to_string(id);
    if (!tokens[id].starts_with("<|")) continue;
    added += (added.empty() ? R"({"id":)" : R"(,{"id":)") + std::to_string(id) + R"(,"content":)" +
             token +
             R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)"
             R"("special":true})";
  }
  folder.write("tokenizer.json",
               R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
                   R"(],"normalizer":null,"pre_tokenizer":null,"post_processor":null,)"
                   R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace",)"
                   R"("pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},)"
                   R"({"type":"Fuse"}]},"model":{"type":"BPE","vocab":{)" +
                   vocabulary + R"(},"merges":[]}})");
  folder.write("tokenizer_config.json", named);
  return models::Tokenizer::load(folder.path());
}

// One side of a row: its tokens as they are spelled ("" has no bytes), and a mark for each, '1' for
// a target; none: all are targets.
class SpelledRow {
 public:
  SpelledRow(const std::vector<std::string>& tokens, const std::string& targets = "")
      : bytes_(spelled_tokenizer(folder_, distinct(tokens))) {
    const std::vector<std::string> vocabulary = distinct(tokens);
    for (const std::string& token : tokens) {
      const auto place = std::find(vocabulary.begin(), vocabulary.end(), token);
      const bool found = place != vocabulary.end();
      ids_.push_back(found ? static_cast<int32_t>(place - vocabulary.begin()) : kNoToken);
    }
    for (const char mark : targets.empty() ? std::string(tokens.size(), '1') : targets)
      is_target_.push_back(mark == '1');
  }

  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<uint8_t>& is_target() const { return is_target_; }
  const models::TokenBytes& bytes() const { return bytes_; }

 private:
  static constexpr int32_t kNoToken = 1 << 20;

  // "!" stands for a vocabulary of nothing, which no tokenizer has.
  static std::vector<std::string> distinct(std::vector<std::string> tokens) {
    std::erase(tokens, "");
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    if (tokens.empty()) tokens.push_back("!");
    return tokens;
  }

  TemporaryFolder folder_;
  models::TokenBytes bytes_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> is_target_;
};

}  // namespace retort::test
