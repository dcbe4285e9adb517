// Chat templates (Jinja, as transformers' apply_chat_template) through the Rust crate `minijinja`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/named_templates.h"
#include "models/text/tokenizer.h"

namespace retort::models {

// What every rendering of a run is given besides its conversation.
struct TemplateSettings {
  // an object of values, e.g. {"enable_thinking": false}; they hide special tokens of their name
  std::string variables_json = "{}";
  // what strftime_now prints the beginning of, as 2026-11-23; empty: the moment of each rendering
  std::string day;
};

class ChatTemplate {
 public:
  // chat_template.jinja and additional_chat_templates/NAME.jinja if present, else the template or
  // templates in tokenizer_config.json. Of several the one named tool_use renders conversations
  // with tools, the one named default all others, as transformers chooses. exists() is false if
  // there is none; kInvalidArgument with their names if none has these two.
  static ChatTemplate load(const std::filesystem::path& folder);
  // The same with `instead` in place of all templates of the folder, which need have none.
  static ChatTemplate load(const std::filesystem::path& folder, const TemplateSource& instead);
  // Parses; kInvalidArgument with Jinja's line for a bad template.
  static ChatTemplate from_source(std::string source, std::string bos_token, std::string eos_token);
  // The same template with these settings in place of those it has. kInvalidArgument for variables
  // that are no object or have the name of what a rendering is given (messages,
  // add_generation_prompt), and for a day that is none.
  ChatTemplate with(const TemplateSettings& settings) const;

  bool exists() const;
  // Those of with(); the defaults where there is no template.
  TemplateSettings settings() const;
  // {% generation %} ... {% endgeneration %} in the template that a rendering with these variables
  // takes
  bool has_generation_marks(std::string_view variables_json = "{}") const;
  // What renders conversations whose answers are learned: the training variant of a published
  // template without marks that is known (training_template.h), else this one.
  ChatTemplate for_training() const;
  // Where it comes from and how answers are found in what it renders, for people: "qwen3 as
  // published, of /models/a; ..."; "none" where there is none.
  std::string description() const;

  struct Rendered {
    std::string text;
    // byte ranges inside {% generation %} blocks
    std::vector<std::pair<size_t, size_t>> generation_spans;
  };
  // `messages_json`: a JSON array of {role, content, ...}. `variables_json`: of this rendering
  // alone, e.g. {"tools": [...]}; they hide the settings'. kInvalidArgument with the template's own
  // raise_exception text.
  Rendered render(std::string_view messages_json, bool add_generation_prompt,
                  std::string_view variables_json = "{}") const;
  const std::string& source() const;           // of the default; empty if only tool_use is there
  const std::string& tool_use_source() const;  // empty: conversations with tools take the default
  // Whether a source or the settings' variables hold this word, so that a rendering may have it
  // whatever it is given.
  bool mentions(std::string_view word) const;
  // The source and what else the rendering of a conversation depends on.
  std::string fingerprint() const;

 private:
  friend struct ChatTokens tokenize_chat(const Tokenizer&, const ChatTemplate&, std::string_view,
                                         std::string_view);
  struct Impl;
  // `assistant_spans`: without marks, the spans come from rendering prefixes.
  Rendered run(std::string_view messages_json, std::string_view variables_json,
               bool add_generation_prompt, bool assistant_spans) const;
  std::shared_ptr<const Impl> impl_;
};

// Gives a tokenizer's folder this template: chat_template.jinja, which goes before what its
// tokenizer_config.json has, and no others by names (additional_chat_templates/).
void write_chat_template(const std::string& source, const std::filesystem::path& folder);

// Token ids of a conversation, as for_training() renders it, and which of them the assistant said:
// inside generation marks. Without marks an answer is what rendering up to it adds to rendering
// before it; with a template that renders the beginning of a conversation otherwise than in the
// whole, what changes with the answer's words, from behind the prompt for it to the sign that ends
// its turn, without white space behind that. kInvalidArgument where an answer leaves no trace.
struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> assistant;  // 1 = said by the assistant
  // The tokens [first, last) of each generation mark or, without marks, of each message of the
  // assistant, in order; a token that straddles a border may belong to two.
  std::vector<std::pair<size_t, size_t>> spans;
  std::string text;  // the conversation as it was rendered
};
ChatTokens tokenize_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                         std::string_view messages_json, std::string_view variables_json = "{}");

}  // namespace retort::models
