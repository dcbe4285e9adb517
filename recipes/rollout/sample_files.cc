#include "recipes/rollout/sample_files.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/json_text.h"
#include "models/generation/completion_spans.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

// ["model", 12]
std::string span_text(const models::Span& span) {
  const bool model = span.source == models::SpanSource::kModel;
  return std::string("[") + (model ? "\"model\", " : "\"environment\", ") +
         std::to_string(span.tokens) + "]";
}

std::string sample_line(const RolloutGroup& group, const RolloutSample& sample,
                        const std::vector<std::string>& names) {
  const auto list = [](const auto& values, auto format) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i)
      text += (i ? ", " : "") + format(values[i]);
    return text + "]";
  };
  const auto number = [](const std::optional<double>& value) {
    return value ? json_number(*value) : std::string("null");
  };
  // Log-probabilities that the generator did not say are null, as are those of tokens that no model
  // drew.
  const std::vector<uint8_t> drawn = models::model_tokens(sample.completion);
  const auto numbers = [&](const std::vector<float>& values) {
    if (values.size() != drawn.size()) return std::string("null");
    auto is_drawn = drawn.begin();
    return list(values, [&](float value) {
      return *is_drawn++ ? json_number(value) : std::string("null");
    });
  };
  const auto integer = [](int32_t id) { return std::to_string(id); };

  JsonLine components;
  for (size_t i = 0; i < names.size() && i < sample.components.size(); ++i)
    components.raw(names[i], number(sample.components[i]));

  JsonLine fields;
  for (const auto& [name, value] : group.prompt.fields)
    fields.add(name, std::string_view(value));
  const std::string& reference = group.prompt.reference;

  JsonLine line;
  line.add("prompt",
           std::string_view(is_episode(sample) ? sample.prompt_text : group.prompt.prompt_text))
      .add("completion", std::string_view(sample.text))
      .raw("prompt_ids", list(prompt_ids_of(group.prompt, sample), integer))
      .raw("token_ids", list(sample.completion.token_ids, integer))
      .raw("logps", numbers(sample.completion.logps))
      .raw("sampling_logps", numbers(sample.completion.sampling_logps))
      .raw("reward", number(sample.reward))
      .raw("rewards", components.str());
  if (is_episode(sample)) {
    line.raw("spans", spans_json(sample.completion)).raw("episode", sample.completion.episode);
  }
  if (sample.adjustment != 0) line.add("reward_adjustment", sample.adjustment);
  return line.add("finish_reason", enum_name(sample.completion.finish_reason))
      .add("sample_id", static_cast<int64_t>(sample.sample_id))
      .add("weight_version", static_cast<int64_t>(sample.weight_version))
      .raw("reference", reference.empty() ? "null" : json_quote(reference))
      .raw("fields", fields.str())
      .add("origin", std::string_view(group.prompt.origin))
      .str();
}

}  // namespace

std::string spans_json(const models::Completion& completion) {
  return json_array(completion.spans, span_text);
}

fs::path samples_folder(const GenerationOptions& generation, const fs::path& run_folder) {
  return generation.save_samples ? run_folder / "samples" : fs::path();
}

void save_samples(PatientFiles& files, const fs::path& folder, parallel::World& world,
                  const Rollout& rollout, int64_t step,
                  const std::vector<std::string>& reward_names) {
  if (folder.empty() || world.mp().rank() != 0) return;
  std::string text;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      text += sample_line(group, sample, reward_names) + "\n";

  const std::string name =
      "step-" + std::to_string(step) + "-rank-" + std::to_string(world.dp().rank()) + ".jsonl";
  files.write(folder / name, std::move(text));
}

}  // namespace retort::recipes
