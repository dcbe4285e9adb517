// Chat templates (Jinja, as transformers' apply_chat_template) through the Rust crate `minijinja`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/tokenizer.h"

namespace retort::models {

class ChatTemplate {
 public:
  // chat_template.jinja if present, else the template in tokenizer_config.json. exists() is false
  // if there is none.
  static ChatTemplate load(const std::filesystem::path& folder);
  // Parses; kInvalidArgument with Jinja's line for a bad template.
  static ChatTemplate from_source(std::string source, std::string bos_token, std::string eos_token);

  bool exists() const;
  bool has_generation_marks() const;  // {% generation %} ... {% endgeneration %}

  struct Rendered {
    std::string text;
    // byte ranges inside {% generation %} blocks
    std::vector<std::pair<size_t, size_t>> generation_spans;
  };
  // `messages_json`: a JSON array of {role, content, ...}. kInvalidArgument with the template's own
  // raise_exception text.
  Rendered render(std::string_view messages_json, bool add_generation_prompt) const;
  const std::string& source() const;

 private:
  friend struct ChatTokens tokenize_chat(const Tokenizer&, const ChatTemplate&, std::string_view);
  struct Impl;
  // `assistant_spans`: without marks, the spans come from rendering prefixes.
  Rendered run(std::string_view messages_json, bool add_generation_prompt,
               bool assistant_spans) const;
  std::shared_ptr<const Impl> impl_;
};

// Token ids of a conversation and which of them the assistant said (inside generation marks;
// without marks, by rendering prefixes, refused with kInvalidArgument where a prefix changes).
struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> assistant;  // 1 = said by the assistant
};
ChatTokens tokenize_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                         std::string_view messages_json);

}  // namespace retort::models
