#include "recipes/data/unpaired.h"

#include <algorithm>

#include "base/error.h"
#include "recipes/data/detail/boundary.h"
#include "recipes/data/detail/formats.h"
#include "recipes/data/detail/message_loss_mask.h"

namespace retort::data {
namespace {

using detail::bad_row;
using detail::Json;
using detail::Row;

void require_format(const Row& row, const Source& source) {
  if (source.format != Format::kAuto && source.format != Format::kPromptCompletion)
    bad_row("format: " + std::string(enum_name(source.format)) +
            " has no labels; expected rows {prompt, completion, label}, which need no `format`");
  for (const char* key : {"prompt", "completion", "label"})
    if (!row.has(key))
      bad_row("'" + std::string(key) +
              "' is missing or null; expected {prompt, completion, label}, label true or false. "
              "The row has: " +
              row.column_names());
}

bool is_desirable(const Row& row) {
  const Json& label = row.require("label");
  if (!label.is_boolean())
    bad_row("'label' is " + label.dump() +
            "; expected true (a desirable completion) or false (an undesirable one)");
  return label.get<bool>();
}

void set_ids(UnpairedSample& sample, const detail::JoinedIds& joined) {
  sample.prompt_ids = joined.prompt();
  sample.completion_ids = joined.completion();
  sample.prompt_differs = joined.prompt_differs;
}

void tokenize(UnpairedSample& sample, const Row& row, const models::Tokenizer& tokenizer,
              const models::ChatTemplate& chat) {
  if (!detail::are_messages(row, "prompt", "completion")) {
    detail::refuse_template_variables(row);
    return set_ids(sample,
                   detail::encode_joined(tokenizer, row.text("prompt"), row.text("completion")));
  }

  const Json& prompt = row.require("prompt");
  const Json& completion = row.require("completion");
  detail::require_template(chat, tokenizer);
  detail::expect_loss_switches(prompt, "prompt", {}, false,
                               "nothing of a prompt is learned; remove the key");
  detail::expect_loss_switches(completion, "completion", {}, true,
                               "a whole completion is judged; remove the key or the row");
  const detail::RenderedPair texts =
      detail::render_pair(prompt, completion, chat, detail::template_variables(row));
  set_ids(sample, detail::encode_rendered(tokenizer, texts.prompt, texts.whole));
}

void measure(UnpairedSample& sample, int64_t max_length) {
  detail::check_fits(sample.prompt_ids.size(), sample.completion_ids.size(), "completion",
                     max_length);
  const auto prompt = static_cast<int64_t>(sample.prompt_ids.size());
  const auto completion = static_cast<int64_t>(sample.completion_ids.size());
  sample.num_tokens = std::min(prompt + completion, max_length);
  sample.truncated = prompt + completion > max_length;
  // A completion is also laid behind other rows' prompts and cut to fit each. Here it only loses
  // what the shortest prompt would leave no room for.
  if (completion < max_length) return;
  sample.completion_ids.resize(static_cast<size_t>(max_length - 1));
  sample.completion_ids.shrink_to_fit();
}

}  // namespace

UnpairedSample make_unpaired(std::string_view json_line, const std::string& origin,
                             const Source& source, const models::Tokenizer& tokenizer,
                             const models::ChatTemplate& chat, int64_t max_length) {
  return detail::at_origin(origin, [&] {
    const Row row(json_line, source);
    require_format(row, source);
    UnpairedSample sample;
    sample.desirable = is_desirable(row);
    tokenize(sample, row, tokenizer, chat);
    measure(sample, max_length);
    sample.fields = row.other_fields({"prompt", "completion", "label", "tools"});
    sample.origin = origin;
    return sample;
  });
}

void check_unpaired_row(std::string_view json_line, const Source& source) {
  const Row row(json_line, source);
  require_format(row, source);
  is_desirable(row);
  if (!detail::are_messages(row, "prompt", "completion"))
    return detail::refuse_template_variables(row);
  detail::check_messages(row.require("prompt"), "prompt");
  detail::check_messages(row.require("completion"), "completion");
  detail::template_variables(row);
}

std::vector<int32_t> fit_completion(const std::vector<int32_t>& prompt,
                                    const std::vector<int32_t>& completion, int64_t max_length) {
  const int64_t room = max_length - static_cast<int64_t>(prompt.size());
  RETORT_CHECK(room > 0) << "a prompt without room for a completion";
  const int64_t kept = std::min(room, static_cast<int64_t>(completion.size()));
  return {completion.begin(), completion.begin() + kept};
}

}  // namespace retort::data
