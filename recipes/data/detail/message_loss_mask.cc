#include "recipes/data/detail/message_loss_mask.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "recipes/data/detail/formats.h"

namespace retort::data::detail {
namespace {

constexpr std::array<std::string_view, 5> kSwitches{"weight", "loss", "train", "loss_mask",
                                                    "trainable"};

struct Switch {
  std::string text;  // "messages[1].weight is 0"
  bool learned = true;
};

Switch read_switch(const Json& value, const std::string& key) {
  const std::string text = key + " is " + (value.is_structured() ? a_type(value) : value.dump());
  if (value.is_boolean()) return {text, value.get<bool>()};
  if (value == 0 || value == 1) return {text, value == 1};
  bad_row(text + "; expected 1 or true (learned), 0 or false (only read), or no such key");
}

// Returns what a message says of itself, or nothing where it has no switch or only nulls.
std::optional<Switch> switch_of(const Json& message, const std::string& where) {
  std::optional<Switch> found;
  for (const std::string_view name : kSwitches) {
    const auto value = message.find(std::string(name));
    if (value == message.end() || value->is_null()) continue;
    Switch own = read_switch(*value, where + "." + std::string(name));
    if (found && found->learned != own.learned)
      bad_row(found->text + " and " + own.text + "; they contradict each other, keep one");
    if (!found) found = std::move(own);
  }
  return found;
}

std::string place(std::string_view name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

bool is_assistant(const Json& message) { return message.at("role") == "assistant"; }

// Returns for each answer, in order, whether it is learned.
std::vector<bool> learned_answers(const Json& messages) {
  std::vector<bool> learned;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::optional<Switch> own = switch_of(messages[i], place("messages", i));
    if (is_assistant(messages[i]))
      learned.push_back(!own || own->learned);
    else if (own && own->learned)
      bad_row(own->text +
              ", but with assistant_only_loss only what the assistant says is learned; " +
              "remove the key (assistant_only_loss: false trains on all tokens)");
  }
  return learned;
}

// The spans are told apart by their order, so each answer must have exactly one. That their number
// fits is not enough, as one answer may have two and another none: it must fit after each answer.
void check_a_span_each(const Json& messages, const models::ChatTemplate& chat,
                       const std::string& variables) {
  const models::ChatTemplate marked = chat.for_training();
  // Without marks the spans were found message by message, so each answer has its own.
  if (!marked.has_generation_marks(variables)) return;
  Json before = Json::array();
  size_t answers = 0;
  for (const Json& message : messages) {
    before.push_back(message);
    if (!is_assistant(message)) continue;
    ++answers;
    const size_t spans = marked.render(before.dump(), false, variables).generation_spans.size();
    if (spans != answers)
      bad_row("an answer is marked as not to be learned, but the chat template has " +
              std::to_string(spans) + " {% generation %} blocks in the first " +
              std::to_string(answers) +
              " answers, so which tokens it has cannot be told; expected one block an answer");
  }
}

}  // namespace

bool apply_loss_switches(const Json& messages, const models::ChatTemplate& chat,
                         const std::string& variables, models::ChatTokens& tokens) {
  const std::vector<bool> learned = learned_answers(messages);
  if (std::find(learned.begin(), learned.end(), false) == learned.end()) return false;
  check_a_span_each(messages, chat, variables);
  if (tokens.spans.size() != learned.size())
    bad_row("an answer is marked as not to be learned, but the chat template marks " +
            std::to_string(tokens.spans.size()) + " spans for " + std::to_string(learned.size()) +
            " answers; expected one {% generation %} block an answer");

  // A token that two answers share stays a target if one of them is learned.
  std::fill(tokens.assistant.begin(), tokens.assistant.end(), uint8_t{0});
  for (size_t i = 0; i < learned.size(); ++i) {
    const auto [first, last] = tokens.spans[i];
    if (learned[i])
      std::fill(tokens.assistant.begin() + static_cast<std::ptrdiff_t>(first),
                tokens.assistant.begin() + static_cast<std::ptrdiff_t>(last), uint8_t{1});
  }
  return true;
}

void expect_loss_switches(const Json& messages, std::string_view name, MessageRange range,
                          bool learned, const std::string& why) {
  check_messages(messages, name);
  for (size_t i = range.begin; i < std::min(range.end, messages.size()); ++i) {
    const std::optional<Switch> own = switch_of(messages[i], place(name, i));
    if (own && own->learned != learned) bad_row(own->text + ", but " + why);
  }
}

void check_loss_switches_of_prompt(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::optional<Switch> own = switch_of(messages[i], place("messages", i));
    const bool is_reference = i > 0 && i + 1 == messages.size() && is_assistant(messages[i]);
    if (own && !own->learned && is_reference)
      bad_row(own->text +
              ", but the last answer is the reference of what is drawn; remove the key, the answer "
              "or the row");
    if (own && own->learned && !is_assistant(messages[i]))
      bad_row(own->text +
              ", but the row is a prompt here, of which nothing is learned; remove the key");
  }
}

void copy_loss_switches(const Json& turn, const std::string& where, Json& message) {
  switch_of(turn, where);
  for (const std::string_view name : kSwitches) {
    const auto value = turn.find(std::string(name));
    if (value != turn.end() && !value->is_null()) message[std::string(name)] = *value;
  }
}

}  // namespace retort::data::detail
