// make_prompt: the part of a row that a generator sees, and its reference answer.
#include <algorithm>

#include "base/error.h"
#include "recipes/data/detail/formats.h"
#include "recipes/data/detail/keys.h"
#include "recipes/data/detail/message_loss_mask.h"
#include "recipes/data/detail/printed_calls.h"
#include "recipes/data/sample.h"

namespace retort::data {
namespace {

using detail::bad_row;
using detail::Json;
using detail::Row;

std::string as_text(const Json& value, const std::string& name) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  bad_row("'" + name + "' is " + detail::a_type(value) + "; expected a string or a number");
}

std::string content_of(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>()
                                                          : std::string();
}

// Returns what the last message of the user says.
std::string question_of(const Json& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message)
    if (message->at("role") == "user") return content_of(*message);
  return "";
}

// Sets what is rendered from the prompt's conversation.
void set_conversation(PromptSample& sample, const Json& messages, const std::string& variables,
                      const models::Tokenizer& tokenizer, const models::ChatTemplate& chat) {
  sample.question = question_of(messages);
  sample.is_chat = true;
  sample.prompt_text = chat.render(messages.dump(), true, variables).text;
  detail::expect_calls(messages, chat, variables, sample.prompt_text);
  sample.prompt_ids = tokenizer.encode(sample.prompt_text, false);
}

// Those functions that set a prompt return its conversation; null where it is a text.
Json set_messages(PromptSample& sample, Json messages, const std::string& variables,
                  const models::Tokenizer& tokenizer, const models::ChatTemplate& chat) {
  detail::require_template(chat, tokenizer);
  detail::check_loss_switches_of_prompt(messages);
  // The last answer is the reference; the generator must not see it.
  if (messages.size() > 1 && messages.back().at("role") == "assistant") {
    sample.reference = content_of(messages.back());
    messages.erase(messages.size() - 1);
  }
  set_conversation(sample, messages, variables, tokenizer, chat);
  return messages;
}

void set_text(PromptSample& sample, std::string prompt, const models::Tokenizer& tokenizer) {
  sample.prompt_ids = detail::encode_beginning(tokenizer, prompt);
  sample.prompt_text = std::move(prompt);
}

// True if the prompt is messages, false if it is a string.
bool is_prompt_of_messages(const Row& row) {
  const Json& prompt = row.require("prompt");
  if (!prompt.is_string() && !prompt.is_array())
    bad_row("'prompt' is " + detail::a_type(prompt) +
            "; expected a string or an array of messages");
  return prompt.is_array();
}

// The generator does not see a row's completion: it is the reference.
void set_reference(PromptSample& sample, const Row& row) {
  const Json* completion = row.find("completion");
  if (!completion) return;
  if (completion->is_array()) {
    detail::expect_loss_switches(*completion, "completion", {}, true,
                                 "it is the reference of what is drawn; remove the key or the row");
    sample.reference = content_of(completion->back());
  } else {
    sample.reference = as_text(*completion, "completion");
  }
}

Json set_prompt_row(PromptSample& sample, const Row& row, const models::Tokenizer& tokenizer,
                    const models::ChatTemplate& chat) {
  const Json& prompt = row.require("prompt");
  const bool conversation = is_prompt_of_messages(row);
  if (!conversation) {
    detail::refuse_template_variables(row);
    set_text(sample, prompt.get<std::string>(), tokenizer);
  } else {
    detail::expect_loss_switches(prompt, "prompt", {}, false,
                                 "nothing of a prompt is learned; remove the key");
    detail::require_template(chat, tokenizer);
    set_conversation(sample, prompt, detail::template_variables(row), tokenizer, chat);
  }
  set_reference(sample, row);
  return conversation ? prompt : Json();
}

void set_ids_row(PromptSample& sample, const Row& row, const models::Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = detail::row_ids(row, tokenizer);
  size_t prompt = ids.size();
  if (row.has("labels")) {
    prompt = static_cast<size_t>(last_turn_begin(detail::row_label_mask(row, ids)));
  }
  sample.prompt_ids.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt));
  sample.prompt_text = tokenizer.decode(sample.prompt_ids, false);
  if (prompt < ids.size())
    sample.reference = tokenizer.decode(std::span(ids).subspan(prompt), true);
}

void require_prompt_of_pair(const Row& row) {
  if (!row.has("prompt"))
    bad_row("a preference row without 'prompt' does not serve generation; add the column");
}

[[noreturn]] void refuse_text_row() {
  bad_row("a text row has no prompt to continue; map its column with `columns: {prompt: text}`");
}

// Sets the prompt, and the reference where the format has one, of a row of any format.
Json set_row(PromptSample& sample, const Row& row, Format format,
             const models::Tokenizer& tokenizer, const models::ChatTemplate& chat) {
  switch (format) {
    case Format::kMessages:
      detail::check_messages(row.require("messages"), "messages");
      return set_messages(sample, row.require("messages"), detail::template_variables(row),
                          tokenizer, chat);
    case Format::kShareGpt:
      return set_messages(sample, detail::sharegpt_messages(row), detail::template_variables(row),
                          tokenizer, chat);
    case Format::kPromptCompletion: return set_prompt_row(sample, row, tokenizer, chat);
    case Format::kAlpaca:
      set_text(sample, detail::alpaca_prompt(row), tokenizer);
      sample.reference = row.optional_text("output");
      return Json();
    case Format::kInputIds: set_ids_row(sample, row, tokenizer); return Json();
    case Format::kPreference:
      require_prompt_of_pair(row);
      return set_prompt_row(sample, row, tokenizer, chat);
    case Format::kText: refuse_text_row();
    case Format::kAuto: RETORT_CHECK(false) << "format auto was not resolved";
  }
  return Json();
}

// Half of what a line of the protocol of environments has (docs/environments.md): texts may be
// twice as long where a program on the way escapes them.
constexpr size_t kMaxEpisodeRow = size_t{1} << 19;

void set_episode(PromptSample& sample, const Row& row, const Json& conversation) {
  if (!conversation.is_array())
    bad_row(
        "the prompt is a text; an episode begins with a conversation: expected 'messages', or "
        "a 'prompt' of messages");
  Json columns = row.columns();
  // Whoever renders an episode knows nothing of `columns:`, and looks for this key itself.
  if (const Json* kwargs = row.find("chat_template_kwargs"))
    columns["chat_template_kwargs"] = *kwargs;
  sample.row = columns.dump();
  if (sample.row.size() > kMaxEpisodeRow)
    bad_row("it has " + std::to_string(sample.row.size()) + " bytes as JSON; at most " +
            std::to_string(kMaxEpisodeRow) +
            " are taken for an episode, since its environment gets all columns in one line of at "
            "most 1 MiB; leave out columns that it does not need");
  sample.messages = conversation.dump();
}

// Refuses what set_prompt_row() refuses without a tokenizer.
void check_prompt_columns(const Row& row) {
  if (is_prompt_of_messages(row))
    detail::template_variables(row);
  else
    detail::refuse_template_variables(row);
  const Json* completion = row.find("completion");
  if (completion && !completion->is_array()) as_text(*completion, "completion");
}

// Refuses what set_row() refuses without a tokenizer.
void check_row_columns(const Row& row, Format format) {
  switch (format) {
    case Format::kMessages:
    case Format::kShareGpt: return detail::check_conversation(row, format);
    case Format::kPromptCompletion: return check_prompt_columns(row);
    case Format::kAlpaca:
      detail::alpaca_prompt(row);
      row.optional_text("output");
      return;
    case Format::kInputIds: detail::require_ids(row); return;
    case Format::kPreference: require_prompt_of_pair(row); return check_prompt_columns(row);
    case Format::kText: refuse_text_row();
    case Format::kAuto: RETORT_CHECK(false) << "format auto was not resolved";
  }
}

}  // namespace

PromptSample make_prompt(std::string_view json_line, const std::string& origin,
                         const Source& source, const models::Tokenizer& tokenizer,
                         const models::ChatTemplate& chat, bool for_episodes) {
  return detail::at_origin(origin, [&] {
    const Row row(json_line, source);
    PromptSample sample;
    sample.origin = origin;
    const Json conversation =
        set_row(sample, row, detail::row_format(row, source, true), tokenizer, chat);
    if (for_episodes) set_episode(sample, row, conversation);

    // An answer is the reference, whatever the format has. Every other column is a field.
    if (const Json* answer = row.find("answer")) sample.reference = as_text(*answer, "answer");
    if (sample.question.empty()) sample.question = sample.prompt_text;
    if (sample.prompt_ids.empty()) bad_row("the prompt has no tokens");
    std::vector<std::string_view> used(detail::kKeys.begin(), detail::kKeys.end());
    used.insert(used.end(), {"system"});
    sample.fields = row.other_fields(std::move(used));
    return sample;
  });
}

void check_prompt_row(std::string_view json_line, const Source& source) {
  const Row row(json_line, source);
  check_row_columns(row, detail::row_format(row, source, /*for_generation=*/true));
  if (const Json* answer = row.find("answer")) as_text(*answer, "answer");
}

}  // namespace retort::data
