#include "recipes/data/preference.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/boundary.h"
#include "recipes/data/detail/formats.h"
#include "recipes/data/detail/message_loss_mask.h"

namespace retort::data {
namespace {

using detail::bad_row;
using detail::Json;
using detail::Row;

struct Texts {
  std::string prompt, chosen, rejected;
};

// The texts that a template renders: the prompt, and the whole conversation with each completion.
struct RenderedTexts {
  std::string prompt, chosen, rejected;
};

void require_format(const Row& row, const Source& source) {
  if (source.format != Format::kAuto && source.format != Format::kPreference)
    bad_row("format: " + std::string(enum_name(source.format)) +
            " has no pairs; expected preference rows ({prompt, chosen, rejected} or {chosen, "
            "rejected})");
  if (!row.has("chosen") || !row.has("rejected"))
    bad_row("'" + std::string(row.has("chosen") ? "rejected" : "chosen") +
            "' is missing or null; a preference row has chosen and rejected, or says which columns "
            "are those with `columns:`. "
            "The row has: " +
            row.column_names());
}

// Splits strings without a prompt: the prompt is what both begin with, cut back to a word boundary,
// so that no word is split between the prompt and a completion. White space at the boundary belongs
// to the completions.
Texts split_strings(const std::string& chosen, const std::string& rejected) {
  const auto differ = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  const std::string shared(chosen.begin(), differ.first);
  const size_t space = shared.find_last_of(" \t\r\n");
  const size_t word =
      space == std::string::npos ? space : shared.find_last_not_of(" \t\r\n", space);
  if (word == std::string::npos)
    bad_row(
        "there is no 'prompt', and 'chosen' and 'rejected' share no beginning of a word or more; "
        "add a prompt column");
  const size_t cut = word + 1;
  return {chosen.substr(0, cut), chosen.substr(cut), rejected.substr(cut)};
}

// Returns how many messages both conversations begin with; each keeps at least one for its
// completion.
size_t shared_messages(const Json& chosen, const Json& rejected) {
  const size_t limit = std::min(chosen.size(), rejected.size()) - 1;
  size_t shared = 0;
  while (shared < limit && chosen[shared] == rejected[shared])
    ++shared;
  if (shared == 0)
    bad_row(
        "there is no 'prompt' of messages, and 'chosen' and 'rejected' do not begin with the same "
        "message followed by another; "
        "add a prompt column");
  return shared;
}

Json messages_from(const Json& messages, size_t begin, size_t end) {
  Json part = Json::array();
  for (size_t i = begin; i < end; ++i)
    part.push_back(messages[i]);
  return part;
}

RenderedTexts render(const Json& prompt, const Json& chosen, const Json& rejected,
                     const models::ChatTemplate& chat, const std::string& variables) {
  detail::RenderedPair better = detail::render_pair(prompt, chosen, chat, variables);
  detail::RenderedPair worse = detail::render_pair(prompt, rejected, chat, variables);
  RETORT_CHECK(better.prompt == worse.prompt);
  return {std::move(better.prompt), std::move(better.whole), std::move(worse.whole)};
}

constexpr const char* kPromptIsRead = "nothing of a prompt is learned; remove the key";

// The messages behind the first `shared` ones are compared as a whole, so none of them may be
// switched off.
void check_switches(const Json& chosen, const Json& rejected, size_t shared) {
  const std::string whole = "a pair compares whole completions; remove the key or the row";
  detail::expect_loss_switches(chosen, "chosen", {.end = shared}, false, kPromptIsRead);
  detail::expect_loss_switches(chosen, "chosen", {.begin = shared}, true, whole);
  detail::expect_loss_switches(rejected, "rejected", {.begin = shared}, true, whole);
}

RenderedTexts from_messages(const Row& row, const models::ChatTemplate& chat) {
  const Json &chosen = row.require("chosen"), &rejected = row.require("rejected");
  detail::check_messages(chosen, "chosen");
  detail::check_messages(rejected, "rejected");
  const std::string variables = detail::template_variables(row);
  const Json* prompt = row.find("prompt");
  if (prompt && prompt->is_array()) {
    detail::expect_loss_switches(*prompt, "prompt", {}, false, kPromptIsRead);
    check_switches(chosen, rejected, 0);
    return render(*prompt, chosen, rejected, chat, variables);
  }
  if (prompt && !prompt->is_string())
    bad_row("'prompt' is " + detail::a_type(*prompt) +
            "; expected an array of messages, or a string that the conversations repeat");
  const size_t shared = shared_messages(chosen, rejected);
  check_switches(chosen, rejected, shared);
  if (prompt) {  // a copy of the last thing that the user said, as some published sets have it
    const auto content = chosen[shared - 1].find("content");
    if (content == chosen[shared - 1].end() || *content != *prompt)
      bad_row(
          "'prompt' is a string, 'chosen' and 'rejected' are messages, and the last message they "
          "share is not the prompt; "
          "expected strings throughout or messages throughout");
  }
  return render(messages_from(chosen, 0, shared), messages_from(chosen, shared, chosen.size()),
                messages_from(rejected, shared, rejected.size()), chat, variables);
}

Texts from_strings(const Row& row) {
  const Json* prompt = row.find("prompt");
  if (!prompt) return split_strings(row.text("chosen"), row.text("rejected"));
  if (!prompt->is_string())
    bad_row("'prompt' is " + detail::a_type(*prompt) +
            " while 'chosen' and 'rejected' are strings; expected a string");
  return {row.text("prompt"), row.text("chosen"), row.text("rejected")};
}

void set_ids(PreferenceSample& sample, detail::JoinedIds chosen, detail::JoinedIds rejected) {
  detail::share_boundary(chosen, rejected);
  sample.prompt_ids = chosen.prompt();
  sample.chosen_ids = chosen.completion();
  sample.rejected_ids = rejected.completion();
  sample.prompt_differs = chosen.prompt_differs || rejected.prompt_differs;
}

void tokenize(PreferenceSample& sample, const Row& row, const models::Tokenizer& tokenizer,
              const models::ChatTemplate& chat) {
  if (!detail::are_messages(row, "chosen", "rejected")) {
    detail::refuse_template_variables(row);
    const Texts texts = from_strings(row);
    return set_ids(sample, detail::encode_joined(tokenizer, texts.prompt, texts.chosen),
                   detail::encode_joined(tokenizer, texts.prompt, texts.rejected));
  }
  detail::require_template(chat, tokenizer);
  const RenderedTexts texts = from_messages(row, chat);
  set_ids(sample, detail::encode_rendered(tokenizer, texts.prompt, texts.chosen),
          detail::encode_rendered(tokenizer, texts.prompt, texts.rejected));
}

void truncate(PreferenceSample& sample, int64_t max_length) {
  const size_t prompt = sample.prompt_ids.size();
  for (auto* ids : {&sample.chosen_ids, &sample.rejected_ids}) {
    detail::check_fits(prompt, ids->size(), ids == &sample.chosen_ids ? "chosen" : "rejected",
                       max_length);
    const size_t room = static_cast<size_t>(max_length) - prompt;
    if (ids->size() <= room) continue;
    ids->resize(room);
    ids->shrink_to_fit();
    sample.truncated = true;
  }
  sample.identical = sample.chosen_ids == sample.rejected_ids;
}

// Keeps the last max_length tokens of a prompt and its completion. At least one token stays in the
// prompt's place, because something must predict the completion's first. Returns whether anything
// was cut.
bool keep_end(std::vector<int32_t>& prompt, std::vector<int32_t>& completion, int64_t max_length) {
  const auto whole = static_cast<int64_t>(prompt.size() + completion.size());
  if (whole <= max_length) return false;
  prompt.insert(prompt.end(), completion.begin(), completion.end());
  prompt.erase(prompt.begin(), prompt.begin() + (whole - max_length));
  const auto kept =
      std::min(static_cast<int64_t>(completion.size()), static_cast<int64_t>(max_length - 1));
  completion.assign(prompt.end() - kept, prompt.end());
  prompt.resize(prompt.size() - static_cast<size_t>(kept));
  prompt.shrink_to_fit();
  completion.shrink_to_fit();
  return true;
}

void truncate_beginning(PreferenceSample& sample, int64_t max_length) {
  const auto longest = std::numeric_limits<int64_t>::max();
  detail::check_fits(sample.prompt_ids.size(), sample.chosen_ids.size(), "chosen", longest);
  detail::check_fits(sample.prompt_ids.size(), sample.rejected_ids.size(), "rejected", longest);

  // The longer completion leaves less room for its prompt, so the two may be cut differently.
  std::vector<int32_t> of_rejected = sample.prompt_ids;
  const bool cut_chosen = keep_end(sample.prompt_ids, sample.chosen_ids, max_length);
  const bool cut_rejected = keep_end(of_rejected, sample.rejected_ids, max_length);
  sample.truncated = cut_chosen || cut_rejected;
  if (of_rejected != sample.prompt_ids) sample.own_prompt_of_rejected = std::move(of_rejected);
  sample.identical = sample.shares_prompt() && sample.chosen_ids == sample.rejected_ids;
}

}  // namespace

PreferenceSample make_preference(std::string_view json_line, const std::string& origin,
                                 const Source& source, const models::Tokenizer& tokenizer,
                                 const models::ChatTemplate& chat, int64_t max_length,
                                 TruncationMode mode) {
  return detail::at_origin(origin, [&] {
    const Row row(json_line, source);
    require_format(row, source);
    PreferenceSample sample;
    tokenize(sample, row, tokenizer, chat);
    if (mode == TruncationMode::kKeepEnd)
      truncate_beginning(sample, max_length);
    else
      truncate(sample, max_length);
    sample.fields = row.other_fields({"prompt", "chosen", "rejected", "tools"});
    sample.origin = origin;
    return sample;
  });
}

void check_preference_row(std::string_view json_line, const Source& source) {
  const Row row(json_line, source);
  require_format(row, source);
  if (!detail::are_messages(row, "chosen", "rejected")) {
    detail::refuse_template_variables(row);
    from_strings(row);
    return;
  }
  detail::check_messages(row.require("chosen"), "chosen");
  detail::check_messages(row.require("rejected"), "rejected");
  detail::template_variables(row);
}

}  // namespace retort::data
