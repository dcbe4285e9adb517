#include "tests/recipes/run_support/on_policy_support.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/file.h"

namespace retort::test {
namespace {

std::string model_path(const std::string& name) {
  return name.find('/') == std::string::npos ? (goldens() / name).string() : name;
}

std::string role(const std::string& name, const std::string& model, int64_t dp,
                 const std::string& world = {}) {
  return "  " + name + ": {model: " + model_path(model) + ", world: {dp: " + std::to_string(dp) +
         ", threads: 1" + world + "}}\n";
}

std::string block(const std::string& name, const std::map<std::string, std::string>& keys) {
  std::string text = name + ": {";
  for (const auto& [key, value] : keys)
    text += (text.back() == '{' ? "" : ", ") + key + ": " + value;
  return text + "}\n";
}

std::string words(int64_t from, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i)
    text += (i ? " w" : "w") + std::to_string((from * 7 + i * 5) % 60);
  return text;
}

// "retort role ... --role student --rank 0", with zeros between the words.
std::string command_line(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string line((std::istreambuf_iterator<char>(file)), {});
  std::replace(line.begin(), line.end(), '\0', ' ');
  return line;
}

int find_process(const std::vector<std::string>& parts) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || std::stoi(pid) == ::getpid())
      continue;
    const std::string line = command_line(pid);
    const auto holds = [&](const std::string& part) {
      return line.find(part) != std::string::npos;
    };
    if (std::all_of(parts.begin(), parts.end(), holds)) return std::stoi(pid);
  }
  return -1;
}

}  // namespace

fs::path write_on_policy(const fs::path& folder, const OnPolicyRecipe& r) {
  std::ostringstream yaml;
  yaml << "recipe: " << r.recipe << "\noutput_dir: " << (folder / "run").string()
       << "\nseed: 3\nroles:\n"
       << role("student", r.student_model, r.dp, r.student_world);
  const bool generates = r.recipe != "dpo" && r.recipe != "kto";
  if (generates) yaml << role("generator", r.generator_model, r.generators, r.generator_world);
  if (!r.reference.empty()) yaml << role("reference", r.reference, 1);
  if (!r.teacher.empty()) yaml << role("teacher", r.teacher, 1);
  yaml << "data:\n  train: [{path: " << r.data.string() << "}]\n  max_length: 64\n" << r.data_extra;
  yaml << "train:\n  max_steps: " << r.steps << "\n  per_device_train_batch_size: " << r.rows
       << "\n  gradient_accumulation_steps: " << r.accumulation
       << "\n  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n  save_steps: " << r.save_steps
       << "\n";
  if (generates) {
    auto generation = r.generation;
    generation.emplace("kv_cache", "4MiB");
    yaml << block("generation", generation);
  }
  if (r.recipe == "grpo" || r.recipe == "rejection_sampling")
    yaml << "rewards: " << r.rewards << "\n";
  yaml << block(r.recipe == "on_policy_distill" ? "distill" : r.recipe, r.block) << r.extra;
  fs::create_directories(folder);
  const fs::path path = folder / "recipe.yaml";
  std::ofstream(path) << yaml.str();
  return path;
}

fs::path run_adapter(const fs::path& folder, const OnPolicyRecipe& recipe,
                     const std::vector<std::string>& settings, const std::string& push) {
  std::vector<std::string> arguments{"launch", write_on_policy(folder, recipe).string(),
                                     "roles.student.lora={r: 4, lora_alpha: 32, " + push + "}",
                                     "train.learning_rate=0.02"};
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  const auto result = retort(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return folder / "run";
}

fs::path write_prompts(const TemporaryFolder& folder, int64_t rows) {
  const fs::path path = folder / "prompts.jsonl";
  std::ofstream file(path);
  for (int64_t i = 0; i < rows; ++i)
    file << "{\"prompt\": \"" << words(i + 1, 1 + i % 6) << "\", \"completion\": \""
         << words(i + 2, 3) << "\"}\n";
  return path;
}

fs::path write_pairs(const TemporaryFolder& folder) {
  const fs::path path = folder / "pairs.jsonl";
  std::ofstream file(path);
  for (int64_t i = 0; i < 12; ++i)
    file << "{\"prompt\": \"" << words(i + 1, 1 + i % 4) << "\", \"chosen\": \""
         << words(i + 3, 2 + i % 3) << "\", \"rejected\": \""
         << (i == 11 ? words(i + 3, 2 + i % 3) : words(i + 5, 1 + i % 5)) << "\"}\n";
  return path;
}

std::vector<nlohmann::json> read_lines(const fs::path& file) {
  std::istringstream lines(read_file(file));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);)
    rows.push_back(nlohmann::json::parse(line));
  return rows;
}

std::map<std::pair<int64_t, int64_t>, nlohmann::json> read_samples(const fs::path& run) {
  std::map<std::pair<int64_t, int64_t>, nlohmann::json> samples;
  for (const auto& entry : fs::directory_iterator(run / "samples")) {
    // half of a file, of a process that was killed
    if (entry.path().extension() != ".jsonl") continue;
    const std::string name = entry.path().filename().string();  // step-3-rank-0.jsonl
    const int64_t step = std::stoll(name.substr(5));
    for (auto& row : read_lines(entry.path())) {
      row.erase("origin");
      // An episode that was lost on its way and begun anew is the same one.
      if (row.contains("episode")) row.at("episode").erase("restarts");
      const int64_t id = row.at("sample_id").get<int64_t>();
      EXPECT_TRUE(samples.emplace(std::pair(step, id), row).second)
          << "sample " << id << " of step " << step << " twice";
    }
  }
  return samples;
}

void expect_same_samples(const fs::path& run, const fs::path& other) {
  const auto got = read_samples(run), expected = read_samples(other);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [key, row] : expected) {
    ASSERT_TRUE(got.contains(key)) << "step " << key.first << " sample " << key.second;
    for (const char* name : {"prompt_ids", "token_ids", "completion", "reward", "rewards",
                             "finish_reason", "weight_version"})
      EXPECT_EQ(got.at(key).at(name), row.at(name))
          << name << " of step " << key.first << " sample " << key.second;
    const auto &logps = row.at("logps"), &others = got.at(key).at("logps");
    ASSERT_EQ(logps.size(), others.size());
    for (size_t i = 0; i < logps.size(); ++i) {
      ASSERT_EQ(others[i].is_null(), logps[i].is_null()) << "an environment's token";
      if (logps[i].is_null()) continue;
      EXPECT_NEAR(others[i].get<double>(), logps[i].get<double>(), 1e-4);
    }
  }
}

void expect_same_column(const fs::path& run, const fs::path& other, const std::string& key,
                        double tolerance) {
  const auto got = column(run, key), expected = column(other, key);
  ASSERT_EQ(got.size(), metrics_rows(run)) << key;
  ASSERT_EQ(got.size(), expected.size()) << key;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
        << key << " of row " << i;
}

int role_process(const fs::path& folder, const std::string& role, int64_t rank,
                 std::chrono::seconds limit) {
  int pid = -1;
  wait_until(
      [&] {
        pid = find_process(
            {folder.string() + "/", "--role " + role + " ", "--rank " + std::to_string(rank)});
        return pid > 0;
      },
      limit);
  return pid;
}

size_t metrics_rows(const fs::path& run) {
  std::ifstream file(run / "metrics.jsonl", std::ios::binary);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

bool all_gone(const std::string& text) {
  return wait_until([&] { return find_process({text}) < 0; }, std::chrono::seconds(20));
}

}  // namespace retort::test
