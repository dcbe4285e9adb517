#include "recipes/data/detail/formats.h"

#include <algorithm>

#include "base/error.h"
#include "recipes/data/detail/message_loss_mask.h"
#include "recipes/data/detail/printed_calls.h"

namespace retort::data::detail {
namespace {

constexpr std::string_view kAlpacaWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. "
    "Write a response that appropriately completes the request.\n\n### Instruction:\n";
constexpr std::string_view kAlpacaAlone =
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n### Instruction:\n";

std::string chat_role(const std::string& from, size_t turn) {
  if (from == "human" || from == "user") return "user";
  if (from == "gpt" || from == "assistant") return "assistant";
  if (from == "system") return "system";
  bad_row("conversations[" + std::to_string(turn) + "].from is '" + from +
          "'; expected human, gpt, user, assistant or system");
}

const Json& member(const Json& object, const std::string& name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string())
    bad_row(where + "." + name + " is missing or not a string");
  return *found;
}

}  // namespace

std::string alpaca_prompt(const Row& row) {
  refuse_columns(row, {"history", "system"},
                 "is not part of the alpaca prompt; use messages rows for several turns");
  const std::string& instruction = row.text("instruction");
  const std::string input = row.optional_text("input");
  if (input.empty()) return std::string(kAlpacaAlone) + instruction + "\n\n### Response:\n";
  return std::string(kAlpacaWithInput) + instruction + "\n\n### Input:\n" + input +
         "\n\n### Response:\n";
}

Json sharegpt_messages(const Row& row) {
  const Json& turns = row.require("conversations");
  if (!turns.is_array() || turns.empty())
    bad_row("'conversations' must be a non-empty array of {from, value}");
  Json messages = Json::array();
  if (const Json* system = row.column("system")) {
    if (!system->is_string()) bad_row("'system' is " + a_type(*system) + "; expected a string");
    if (!system->get_ref<const std::string&>().empty())
      messages.push_back({{"role", "system"}, {"content", *system}});
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string where = "conversations[" + std::to_string(i) + "]";
    if (!turns[i].is_object())
      bad_row(where + " is " + a_type(turns[i]) + "; expected {from, value}");
    const std::string role = chat_role(member(turns[i], "from", where).get<std::string>(), i);
    messages.push_back({{"role", role}, {"content", member(turns[i], "value", where)}});
    copy_loss_switches(turns[i], where, messages.back());
  }
  return messages;
}

void check_messages(const Json& messages, std::string_view key) {
  const std::string name(key);
  if (!messages.is_array() || messages.empty())
    bad_row("'" + name + "' is " + (messages.is_array() ? "an empty array" : a_type(messages)) +
            "; expected a non-empty array of {role, content}");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = name + "[" + std::to_string(i) + "]";
    if (!messages[i].is_object())
      bad_row(where + " is " + a_type(messages[i]) + "; expected {role, content}");
    member(messages[i], "role", where);
    const auto content = messages[i].find("content");
    const bool absent = content == messages[i].end() || content->is_null();
    if (absent && !messages[i].contains("tool_calls")) bad_row(where + ".content is missing");
    if (!absent && !content->is_string() && !content->is_array())
      bad_row(where + ".content is " + a_type(*content) + "; expected a string");
  }
}

bool are_messages(const Row& row, std::string_view first, std::string_view second) {
  const Json& one = row.require(first);
  const Json& other = row.require(second);
  if (one.is_string() && other.is_string()) return false;
  if (!one.is_array() || !other.is_array())
    bad_row("'" + std::string(first) + "' is " + a_type(one) + " and '" + std::string(second) +
            "' " + a_type(other) + "; expected two strings or two arrays of messages");
  return true;
}

void require_template(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer) {
  if (!chat.exists())
    bad_row("messages need a chat template, and " + tokenizer.folder().string() +
            " has none (chat_template.jinja, or chat_template in tokenizer_config.json)");
}

void refuse_columns(const Row& row, std::initializer_list<std::string_view> names,
                    const std::string& why) {
  for (const std::string_view name : names) {
    const Json* value = row.column(name);
    if (!value) continue;
    const bool empty = (value->is_string() && value->get_ref<const std::string&>().empty()) ||
                       (value->is_structured() && value->empty());
    if (!empty) bad_row("column '" + std::string(name) + "' " + why);
  }
}

std::string template_variables(const Row& row) {
  Json variables = Json::object();
  if (const Json* own = row.find("chat_template_kwargs")) {
    if (!own->is_object())
      bad_row("'chat_template_kwargs' is " + a_type(*own) + "; expected an object");
    variables = *own;
  }

  const Json* tools = row.find("tools");
  if (!tools) return variables.dump();
  // Some published sets hold tools as text, because the schemas of a column must be alike there.
  const Json list =
      tools->is_string() ? Json::parse(tools->get<std::string>(), nullptr, false) : *tools;
  if (!list.is_array()) bad_row("'tools' is " + a_type(*tools) + "; expected an array of schemas");
  for (const Json& tool : list)
    if (!tool.is_object()) bad_row("'tools' holds " + a_type(tool) + "; expected JSON schemas");
  variables["tools"] = list;
  return variables.dump();
}

void check_conversation(const Row& row, Format format) {
  if (format == Format::kShareGpt)
    sharegpt_messages(row);
  else
    check_messages(row.require("messages"), "messages");
  template_variables(row);
}

void refuse_template_variables(const Row& row) {
  refuse_columns(row, {"tools", "chat_template_kwargs"},
                 "is for the chat template, which renders messages; this row has strings");
}

void check_fits(size_t prompt_tokens, size_t completion_tokens, const std::string& name,
                int64_t max_length) {
  if (prompt_tokens == 0) bad_row("the prompt has no tokens");
  if (completion_tokens == 0) bad_row("the chat template renders nothing for '" + name + "'");
  if (static_cast<int64_t>(prompt_tokens) >= max_length)
    bad_row("'" + name + "' lies beyond max_length " + std::to_string(max_length) +
            " (the prompt has " + std::to_string(prompt_tokens) +
            " tokens, the start is kept); raise data.max_length or shorten the prompt");
}

RenderedPair render_pair(const Json& prompt, const Json& completion,
                         const models::ChatTemplate& chat, const std::string& variables) {
  check_messages(prompt, "prompt");
  check_messages(completion, "completion");
  Json all = prompt;
  for (const Json& message : completion)
    all.push_back(message);
  RenderedPair pair{.prompt = chat.render(prompt.dump(), true, variables).text,
                    .whole = chat.render(all.dump(), false, variables).text};
  expect_calls(all, chat, variables, pair.whole);
  return pair;
}

std::vector<int32_t> encode_beginning(const models::Tokenizer& tokenizer, std::string_view text) {
  // The post-processor's tokens are found with a probe: whatever it adds in front of "a" it adds in
  // front of any text. A text that brings them along gets them once.
  const std::vector<int32_t> bare = tokenizer.encode("a", false),
                             dressed = tokenizer.encode("a", true);
  const auto at = std::search(dressed.begin(), dressed.end(), bare.begin(), bare.end());
  if (bare.empty() || at == dressed.end())
    bad_row("the tokenizer in " + tokenizer.folder().string() +
            " does not keep the text 'a' between its special tokens; "
            "use input_ids rows");
  std::vector<int32_t> ids(dressed.begin(), at);
  const std::vector<int32_t> body = tokenizer.encode(text, false);
  if (!ids.empty() && body.size() >= ids.size() && std::equal(ids.begin(), ids.end(), body.begin()))
    ids.clear();
  ids.insert(ids.end(), body.begin(), body.end());
  return ids;
}

void append_eos(std::vector<int32_t>& ids, const models::Tokenizer& tokenizer) {
  const int32_t eos = tokenizer.eos_id();
  if (eos < 0)
    bad_row("the tokenizer in " + tokenizer.folder().string() +
            " names no eos_token, which ends every text and completion");
  if (ids.empty() || ids.back() != eos) ids.push_back(eos);
}

const Json& require_ids(const Row& row) {
  refuse_columns(row, {"completion_mask", "assistant_masks", "loss_mask"},
                 "is not read; say which ids are targets with `labels` (-100: not a target)");
  const Json& value = row.require("input_ids");
  if (!value.is_array() || value.empty())
    bad_row("'input_ids' must be a non-empty array of token ids");
  return value;
}

std::vector<int32_t> row_ids(const Row& row, const models::Tokenizer& tokenizer) {
  const Json& value = require_ids(row);
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_number_integer() || value[i].get<int64_t>() < 0 ||
        value[i].get<int64_t>() >= tokenizer.vocab_size())
      bad_row("input_ids[" + std::to_string(i) + "] is " + value[i].dump() +
              "; expected a token id from 0 to " + std::to_string(tokenizer.vocab_size() - 1));
    ids.push_back(static_cast<int32_t>(value[i].get<int64_t>()));
  }
  if (const Json* mask = row.column("attention_mask"))
    for (const Json& one : *mask)
      if (one != 1)
        bad_row(
            "'attention_mask' holds something other than 1; padding does not belong into a row");
  return ids;
}

std::vector<uint8_t> row_label_mask(const Row& row, const std::vector<int32_t>& ids) {
  std::vector<uint8_t> targets(ids.size(), 1);
  const Json* labels = row.find("labels");
  if (!labels) return targets;
  if (!labels->is_array() || labels->size() != ids.size())
    bad_row("'labels' must be an array as long as input_ids (" + std::to_string(ids.size()) + ")" +
            (labels->is_array() ? "; it has " + std::to_string(labels->size()) : ""));
  for (size_t i = 0; i < ids.size(); ++i) {
    const Json& label = (*labels)[i];
    // As in transformers: -100 is no target, and labels are not shifted.
    if (label == -100) {
      targets[i] = 0;
    } else if (label != ids[i]) {
      bad_row("labels[" + std::to_string(i) + "] is " + label.dump() + " but input_ids[" +
              std::to_string(i) + "] is " + std::to_string(ids[i]) +
              "; expected the same id or -100 (labels are not shifted)");
    }
  }
  return targets;
}

}  // namespace retort::data::detail
