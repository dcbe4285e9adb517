#include "recipes/data/sample.h"

#include <algorithm>

#include "base/error.h"
#include "recipes/data/detail/boundary.h"
#include "recipes/data/detail/formats.h"
#include "recipes/data/detail/message_loss_mask.h"
#include "recipes/data/detail/printed_calls.h"

namespace retort::data {
namespace {

using detail::bad_row;
using detail::Json;
using detail::Row;

// A sample before truncation, with the reason to give if nothing in it is a target.
struct Draft {
  std::vector<int32_t> ids;
  std::vector<uint8_t> targets;
  std::string if_none;
  bool prompt_differs = false;

  void add(const std::vector<int32_t>& more, bool target) {
    ids.insert(ids.end(), more.begin(), more.end());
    targets.resize(ids.size(), target ? 1 : 0);
  }
  // Adds a prompt with its completion, which is the target.
  void add(detail::JoinedIds joined, bool prompt_too) {
    targets.assign(joined.prompt_tokens, prompt_too ? 1 : 0);
    targets.resize(joined.ids.size(), 1);
    ids = std::move(joined.ids);
    prompt_differs = joined.prompt_differs;
  }
};

struct Context {
  const models::Tokenizer& tokenizer;
  const models::ChatTemplate& chat;
  const SampleOptions& options;
};

Draft from_strings(const std::string& prompt, const std::string& completion,
                   const Context& context) {
  Draft draft;
  draft.add(detail::encode_joined(context.tokenizer, prompt, completion),
            !context.options.completion_only_loss);
  draft.if_none = "the row is a single token, which nothing predicts";
  return draft;
}

Draft from_text(const Row& row, const Context& context) {
  const std::string& text = row.text("text");
  if (text.empty()) bad_row("no targets: 'text' is empty");
  Draft draft;
  std::vector<int32_t> ids = detail::encode_beginning(context.tokenizer, text);
  detail::append_eos(ids, context.tokenizer);
  draft.add(ids, true);
  draft.if_none = "the row is a single token, which nothing predicts";
  return draft;
}

std::string why_no_answer(const Json& messages, bool some_are_off) {
  if (some_are_off)
    return "no answer is left to learn: the messages mark theirs as only read (weight, loss, "
           "train, loss_mask or trainable)";
  const bool spoke = std::any_of(messages.begin(), messages.end(),
                                 [](const Json& m) { return m.at("role") == "assistant"; });
  return spoke ? "the chat template puts nothing that the assistant says between its "
                 "{% generation %} marks"
               : "no message has the role assistant (assistant_only_loss: false trains on all "
                 "tokens)";
}

// True if the prompt before the last answer, as a generator is given it, has other tokens than the
// conversation has there.
bool prompt_of_last_differs(const Json& messages, const std::string& variables,
                            const std::vector<int32_t>& ids, const Context& context) {
  if (messages.size() < 2 || messages.back().at("role") != "assistant") return false;
  Json prompt = messages;
  prompt.erase(prompt.size() - 1);
  try {
    const std::string text = context.chat.render(prompt.dump(), true, variables).text;
    const std::vector<int32_t> alone = context.tokenizer.encode(text, false);
    return alone.size() > ids.size() || !std::equal(alone.begin(), alone.end(), ids.begin());
  } catch (const Error&) {
    return false;  // this template refuses a conversation that ends so: nobody is asked for more
  }
}

Draft from_messages(const Json& messages, const std::string& variables, const Context& context) {
  detail::check_messages(messages, "messages");
  detail::require_template(context.chat, context.tokenizer);
  Draft draft;

  // Either every token is a target, or only those that the template marks as the assistant's.
  if (!context.options.assistant_only_loss) {
    detail::expect_loss_switches(messages, "messages", {}, true,
                                 "assistant_only_loss: false trains on all tokens; remove the key "
                                 "or the option");
    const std::string text = context.chat.render(messages.dump(), false, variables).text;
    detail::expect_calls(messages, context.chat, variables, text);
    draft.add(context.tokenizer.encode(text, false), true);
    draft.if_none = "the rendered conversation has fewer than two tokens";
    if (context.options.compare_prompts)
      draft.prompt_differs = prompt_of_last_differs(messages, variables, draft.ids, context);
    return draft;
  }

  // The template's marks say which tokens are the assistant's. The messages' own switches then take
  // answers out of these.
  models::ChatTokens tokens =
      models::tokenize_chat(context.tokenizer, context.chat, messages.dump(), variables);
  RETORT_CHECK(tokens.ids.size() == tokens.assistant.size());
  detail::expect_calls(messages, context.chat, variables, tokens.text);
  const bool some_are_off = detail::apply_loss_switches(messages, context.chat, variables, tokens);
  draft.ids = std::move(tokens.ids);
  draft.targets = std::move(tokens.assistant);

  draft.if_none = why_no_answer(messages, some_are_off);
  if (context.options.compare_prompts)
    draft.prompt_differs = prompt_of_last_differs(messages, variables, draft.ids, context);
  return draft;
}

// Prompt and completion are learned as wholes, so a message of theirs cannot be switched; only rows
// of `messages` have answers that are merely read.
void expect_pair_switches(const Json& prompt, const Json& completion,
                          const SampleOptions& options) {
  const std::string remedy = "; remove the key, or write the conversation as a `messages` row";
  const std::string why = options.completion_only_loss
                              ? "nothing of a prompt is learned"
                              : "completion_only_loss: false trains on the whole prompt";
  detail::expect_loss_switches(prompt, "prompt", {}, !options.completion_only_loss, why + remedy);
  detail::expect_loss_switches(completion, "completion", {}, true,
                               "all of a completion is learned" + remedy);
}

Draft from_prompt_completion(const Row& row, const Context& context) {
  if (!detail::are_messages(row, "prompt", "completion")) {
    detail::refuse_template_variables(row);
    return from_strings(row.text("prompt"), row.text("completion"), context);
  }
  const Json& prompt = row.require("prompt");
  const Json& completion = row.require("completion");
  detail::require_template(context.chat, context.tokenizer);
  expect_pair_switches(prompt, completion, context.options);
  const detail::RenderedPair pair =
      detail::render_pair(prompt, completion, context.chat, detail::template_variables(row));
  Draft draft;
  draft.add(detail::encode_rendered(context.tokenizer, pair.prompt, pair.whole),
            !context.options.completion_only_loss);
  draft.if_none = "the chat template renders nothing for the completion";
  return draft;
}

Draft from_ids(const Row& row, const Context& context) {
  Draft draft;
  draft.ids = detail::row_ids(row, context.tokenizer);
  draft.targets = detail::row_label_mask(row, draft.ids);
  draft.if_none = row.has("labels") ? "all labels from the second on are -100"
                                    : "the row is a single token, which nothing predicts";
  return draft;
}

[[noreturn]] void refuse_pairs() {
  bad_row(
      "format: preference has no single completion to train on; map one with `columns: "
      "{completion: chosen}` and leave the format auto");
}

Draft draft_row(const Row& row, Format format, const Context& context) {
  switch (format) {
    case Format::kMessages:
      return from_messages(row.require("messages"), detail::template_variables(row), context);
    case Format::kShareGpt:
      return from_messages(detail::sharegpt_messages(row), detail::template_variables(row),
                           context);
    case Format::kPromptCompletion: return from_prompt_completion(row, context);
    case Format::kText: return from_text(row, context);
    case Format::kAlpaca:
      return from_strings(detail::alpaca_prompt(row), row.text("output"), context);
    case Format::kInputIds: return from_ids(row, context);
    case Format::kPreference: refuse_pairs();
    case Format::kAuto: break;
  }
  RETORT_CHECK(false) << "format auto was not resolved";
  return {};
}

// Refuses what draft_row() refuses without a tokenizer.
void check_columns(const Row& row, Format format) {
  switch (format) {
    case Format::kMessages:
    case Format::kShareGpt: return detail::check_conversation(row, format);
    case Format::kPromptCompletion:
      if (!detail::are_messages(row, "prompt", "completion"))
        return detail::refuse_template_variables(row);
      detail::check_messages(row.require("prompt"), "prompt");
      detail::check_messages(row.require("completion"), "completion");
      detail::template_variables(row);
      return;
    case Format::kText: row.text("text"); return;
    case Format::kAlpaca:
      detail::alpaca_prompt(row);
      row.text("output");
      return;
    case Format::kInputIds: detail::require_ids(row); return;
    case Format::kPreference: refuse_pairs();
    case Format::kAuto: RETORT_CHECK(false) << "format auto was not resolved";
  }
}

std::vector<std::string_view> used_keys(Format format) {
  switch (format) {
    case Format::kMessages: return {"messages", "tools"};
    case Format::kShareGpt: return {"conversations", "system", "tools"};
    case Format::kPromptCompletion: return {"prompt", "completion", "tools"};
    case Format::kText: return {"text"};
    case Format::kAlpaca: return {"instruction", "input", "output"};
    case Format::kInputIds: return {"input_ids", "labels"};
    case Format::kPreference: return {"prompt", "chosen", "rejected"};
    case Format::kAuto: break;
  }
  return {};
}

Sample finish(Draft draft, int64_t max_length, TruncationMode mode) {
  Sample sample;
  if (!draft.targets.empty()) draft.targets[0] = 0;  // nothing predicts the first token
  const auto before = std::count(draft.targets.begin(), draft.targets.end(), uint8_t{1});
  const size_t length = draft.ids.size();

  const bool keeps_start = mode == TruncationMode::kKeepStart;
  if (length > static_cast<size_t>(max_length)) {
    if (!keeps_start) {
      const auto cut = static_cast<std::ptrdiff_t>(length) - max_length;
      draft.ids.erase(draft.ids.begin(), draft.ids.begin() + cut);
      draft.targets.erase(draft.targets.begin(), draft.targets.begin() + cut);
      draft.targets[0] = 0;
    }
    draft.ids.resize(static_cast<size_t>(max_length));
    draft.targets.resize(draft.ids.size());
    draft.ids.shrink_to_fit();
    draft.targets.shrink_to_fit();
    sample.truncated = true;
  }
  sample.prompt_differs = draft.prompt_differs;
  sample.input_ids = std::move(draft.ids);
  sample.is_target = std::move(draft.targets);

  // A sample without a target would train on nothing, so it is refused; the text says whether the
  // cut took its targets or it never had any.
  if (sample.num_targets() > 0) return sample;
  if (before > 0)
    bad_row("no targets: all " + std::to_string(before) + " targets lie beyond max_length " +
            std::to_string(max_length) + " (the row has " + std::to_string(length) +
            " tokens, the " + (keeps_start ? "start" : "end") +
            " is kept); raise data.max_length or shorten the prompt");
  bad_row("no targets: " + draft.if_none);
}

}  // namespace

Sample part_of(const Sample& sample, int64_t begin, int64_t end) {
  RETORT_CHECK(begin >= 0 && begin < end && end <= static_cast<int64_t>(sample.input_ids.size()))
      << sample.origin;
  Sample part;
  part.input_ids.assign(sample.input_ids.begin() + begin, sample.input_ids.begin() + end);
  part.is_target.assign(sample.is_target.begin() + begin, sample.is_target.begin() + end);
  part.is_target[0] = 0;
  part.fields = sample.fields;
  part.origin = sample.origin;
  return part;
}

int64_t last_turn_begin(const std::vector<uint8_t>& is_target) {
  const auto last = std::find(is_target.rbegin(), is_target.rend(), uint8_t{1});
  if (last == is_target.rend()) return static_cast<int64_t>(is_target.size());
  return is_target.rend() - std::find(last, is_target.rend(), uint8_t{0});
}

int64_t Sample::num_targets() const {
  return std::count(is_target.begin(), is_target.end(), uint8_t{1});
}

Sample make_sample(std::string_view json_line, const std::string& origin, const Source& source,
                   const models::Tokenizer& tokenizer, const models::ChatTemplate& chat,
                   const SampleOptions& options) {
  return detail::at_origin(origin, [&] {
    const Row row(json_line, source);
    const Format format = detail::row_format(row, source, false);
    Sample sample = finish(draft_row(row, format, {tokenizer, chat, options}), options.max_length,
                           options.truncation_mode);
    sample.fields = row.other_fields(used_keys(format));
    sample.origin = origin;
    return sample;
  });
}

void check_sample_row(std::string_view json_line, const Source& source) {
  const Row row(json_line, source);
  check_columns(row, detail::row_format(row, source, /*for_generation=*/false));
}

bool holds_messages(std::string_view json_line, const Source& source) {
  const Row row(json_line, source);
  for (const char* key : {"messages", "conversations", "prompt", "completion", "chosen"})
    if (const detail::Json* value = row.find(key); value && value->is_array()) return true;
  return false;
}

Format detect_format(std::string_view json_line, const std::string& origin, const Source& source) {
  return detail::at_origin(
      origin, [&] { return detail::row_format(Row(json_line, source), source, false); });
}

}  // namespace retort::data
