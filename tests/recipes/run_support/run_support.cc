#include "tests/recipes/run_support/run_support.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "models/safetensors/safetensors.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

// The names in docs/metrics.md, with a pattern for each <...>, which stands for one part of a path.
std::vector<std::regex> documented_metrics() {
  const std::string text = read_file(source_folder() / "docs" / "metrics.md");
  static const std::regex in_table("`([^`]+)`");
  static const std::regex placeholder("<[^>]+>");
  std::vector<std::regex> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (std::sregex_iterator name(cell.begin(), cell.end(), in_table), end; name != end; ++name)
      names.emplace_back(std::regex_replace(name->str(1), placeholder, "[^/]+"));
  }
  return names;
}

bool is_documented(const std::string& name) {
  static const std::vector<std::regex> all = documented_metrics();
  const auto fits = [&](const std::string& text) {
    return std::any_of(all.begin(), all.end(),
                       [&](const std::regex& one) { return std::regex_match(text, one); });
  };
  return fits(name) || (name.starts_with("eval_") && fits(name.substr(5)));
}

// Each name of a run's rows is in the documents. Names are looked up once in a process.
void expect_documented(const nlohmann::json& row) {
  static std::set<std::string> seen;
  for (const auto& [name, value] : row.items())
    if (seen.insert(name).second) {
      EXPECT_TRUE(is_documented(name)) << name << " is missing in docs/metrics.md";
    }
}

}  // namespace

std::string retort_binary() {
  const char* path = std::getenv("RETORT_BIN");
  RETORT_CHECK(path) << "RETORT_BIN is not set; run through ctest";
  return path;
}

CommandResult retort(std::vector<std::string> args, std::chrono::seconds deadline) {
  args.insert(args.begin(), retort_binary());
  return Command(std::move(args)).wait(deadline);
}

fs::path goldens() { return source_folder() / "tests" / "recipes" / "goldens"; }

std::vector<nlohmann::json> read_metrics(const fs::path& run) {
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);)
    rows.push_back(nlohmann::json::parse(line));
  for (const nlohmann::json& row : rows)
    expect_documented(row);
  return rows;
}

std::vector<double> column(const fs::path& run, const std::string& key) {
  std::vector<double> values;
  for (const auto& row : read_metrics(run))
    if (row.contains(key)) values.push_back(row.at(key).get<double>());
  return values;
}

double relative_difference(const fs::path& a, const fs::path& b) {
  const models::SafetensorsReader left(a), right(b);
  EXPECT_EQ(left.names(), right.names());
  double difference = 0, norm = 0;
  for (const auto& name : right.names()) {
    const at::Tensor x = left.get(name).to(at::kDouble), y = right.get(name).to(at::kDouble);
    difference += (x - y).square().sum().item<double>();
    norm += y.square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

std::string timeless_metrics(const fs::path& run) {
  std::string text;
  for (auto row : read_metrics(run)) {
    for (const char* key :
         {"step_time", "tokens_per_second", "data_wait_time", "teacher_wait_time",
          "reference_wait_time", "generation_time", "generator_wait_time", "reward_time",
          "reward_wait_time", "weight_sync_time", "peak_device_memory"})
      row.erase(key);
    for (auto one = row.begin(); one != row.end();)
      one = one.key().starts_with("rpc/") ? row.erase(one) : std::next(one);
    text += row.dump() + "\n";
  }
  return text;
}

fs::path write_recipe(const fs::path& folder, const GoldenRecipe& r) {
  std::ostringstream yaml;
  yaml << "recipe: " << (r.teacher.empty() ? "sft" : "distill")
       << "\noutput_dir: " << (folder / "run").string() << "\nseed: 3\n"
       << "roles:\n  student:\n    model: " << (goldens() / r.student).string()
       << "\n    world: {dp: " << r.dp << ", threads: 1" << r.student_world << "}\n";
  if (!r.teacher.empty())
    yaml << "  teacher:\n    model: " << (goldens() / r.teacher).string() << r.teacher_extra
         << "\n    world: {dp: " << r.teacher_replicas << ", threads: 1" << r.teacher_world
         << "}\n";
  yaml << "data:\n  train: [{path: " << (goldens() / "rows.jsonl").string()
       << "}]\n  max_length: 64\n  packing: false\n"
       << "  shuffle: false\n"
       << "train:\n  max_steps: " << r.steps << "\n  per_device_train_batch_size: " << r.rows
       << "\n  gradient_accumulation_steps: " << r.accumulation
       << "\n  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n  save_steps: 0\n"
       << r.train_extra;
  if (!r.teacher.empty()) {
    yaml << "distill:\n  teachers: [{role: teacher}]\n";
    for (const auto& [key, value] : r.distill)
      yaml << "  " << key << ": " << value << "\n";
  }
  yaml << r.extra;
  fs::create_directories(folder);
  const fs::path path = folder / "recipe.yaml";
  std::ofstream(path) << yaml.str();
  return path;
}

}  // namespace retort::test
