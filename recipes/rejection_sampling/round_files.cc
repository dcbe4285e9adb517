#include "recipes/rejection_sampling/round_files.h"

#include <sstream>
#include <variant>

#include "base/file.h"
#include "base/json_text.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

template <class Values>
std::string json_list(const Values& values) {
  return json_array(values, [](auto value) { return std::to_string(value); });
}

fs::path metrics_file(fs::path kept) { return kept.replace_extension(".metrics"); }

// Writes a line for each number, "name value".
std::string metrics_text(const MetricsRow& row) {
  std::string text;
  for (const auto& [name, value] : row.values) {
    const double number = std::visit([](auto any) { return static_cast<double>(any); }, value);
    text += name + " " + json_number(number) + "\n";
  }
  return text;
}

}  // namespace

fs::path kept_file(const fs::path& run_folder, int64_t round) {
  return run_folder / "kept" / ("round-" + std::to_string(round) + ".jsonl");
}

std::string kept_line(const RolloutGroup& group, const RolloutSample& sample, int64_t round,
                      uint64_t seed) {
  std::vector<int32_t> ids = group.prompt.prompt_ids;
  std::vector<int32_t> labels(ids.size(), -100);
  const auto& completion = sample.completion.token_ids;
  ids.insert(ids.end(), completion.begin(), completion.end());
  labels.insert(labels.end(), completion.begin(), completion.end());

  return JsonLine()
      .raw("input_ids", json_list(ids))
      .raw("labels", json_list(labels))
      .add("prompt", std::string_view(group.prompt.prompt_text))
      .add("completion", std::string_view(sample.text))
      .add("reward", *sample.reward)
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
  double value = 0;
  for (std::string name; in >> name >> value;)
    row.add(name, value);
  return row;
}

}  // namespace retort::recipes
