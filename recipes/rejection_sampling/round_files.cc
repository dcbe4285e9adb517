#include "recipes/rejection_sampling/round_files.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>

#include "base/file.h"
#include "base/json_text.h"
#include "recipes/rollout/sample_files.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

template <class Values>
std::string json_list(const Values& values) {
  return json_array(values, [](auto value) { return std::to_string(value); });
}

fs::path metrics_file(fs::path kept) { return kept.replace_extension(".metrics"); }

// Writes a line for each number, "name value". A name that an environment chose may hold anything,
// so names are JSON.
std::string metrics_text(const MetricsRow& row) {
  std::string text;
  for (const auto& [name, value] : row.values) {
    const double number = std::visit([](auto any) { return static_cast<double>(any); }, value);
    text += json_quote(name) + " " + json_number(number) + "\n";
  }
  return text;
}

// Adds what a line of metrics_text says; of an earlier version a name stands there as it is.
void add_metric(const std::string& line, MetricsRow& row) {
  const size_t end = line.rfind(' ');
  std::istringstream number(end == std::string::npos ? "" : line.substr(end));
  double value = 0;
  if (!(number >> value)) return;
  const std::string text = line.substr(0, end);
  const auto name = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  row.add(name.is_string() ? name.get<std::string>() : text, value);
}

}  // namespace

fs::path kept_file(const fs::path& run_folder, int64_t round) {
  return run_folder / "kept" / ("round-" + std::to_string(round) + ".jsonl");
}

std::string kept_line(const data::Sample& row, const RolloutGroup& group,
                      const RolloutSample& sample, int64_t round, uint64_t seed) {
  constexpr int32_t kNoTarget = -100;
  std::vector<int32_t> labels = row.input_ids;
  for (size_t i = 0; i < labels.size(); ++i)
    if (!row.is_target[i]) labels[i] = kNoTarget;
  const std::string& prompt = is_episode(sample) ? sample.prompt_text : group.prompt.prompt_text;

  JsonLine line;
  line.raw("input_ids", json_list(row.input_ids))
      .raw("labels", json_list(labels))
      .add("prompt", std::string_view(prompt))
      .add("completion", std::string_view(sample.text));
  if (is_episode(sample))
    line.raw("spans", spans_json(sample.completion)).raw("episode", sample.completion.episode);
  return line.add("reward", *sample.reward)
      .add("round", round)
      .add("sample_id", static_cast<int64_t>(sample.sample_id))
      .add("seed", static_cast<int64_t>(seed))
      .add("weight_version", static_cast<int64_t>(sample.weight_version))
      .add("origin", std::string_view(group.prompt.origin))
      .str();
}

void write_round(const fs::path& kept, const std::vector<std::string>& lines,
                 const MetricsRow& metrics) {
  std::string text;
  for (const std::string& line : lines)
    text += line + "\n";
  // The file of kept rows comes last: where it is there, the round is not drawn again.
  fs::create_directories(kept.parent_path());
  write_file_atomically(metrics_file(kept), metrics_text(metrics));
  write_file_atomically(kept, text);
}

MetricsRow read_round_metrics(const fs::path& kept) {
  MetricsRow row;
  const fs::path file = metrics_file(kept);
  if (!fs::exists(file)) return row;
  std::istringstream in(read_file(file));
  for (std::string line; std::getline(in, line);)
    add_metric(line, row);
  return row;
}

}  // namespace retort::recipes
