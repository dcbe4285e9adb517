#include "tests/engines/engine_run.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/file.h"

namespace retort::test {

using Json = nlohmann::json;

void EngineRunTest::make_files() {
  files_ = std::make_unique<TemporaryFolder>();
  make_rows();
  must({"tokenizer", "train", "--data", file("text.jsonl"), "--vocab-size", "300", "--output",
        file("tokenizer")});
  for (const std::string seed : {"1", "2"})
    must({"model", "init", "--arch", "qwen3", "--tokenizer", file("tokenizer"), "--output",
          file("model-" + seed), "--hidden-size", "64", "--num-hidden-layers", "2",
          "--num-attention-heads", "2", "--initializer-range", "0.1", "--seed", seed});
}

void EngineRunTest::make_rows() {
  const std::vector<std::string> words{"the", "cat", "sees", "two", "red", "dogs", "and", "runs"};
  std::ofstream text(file("text.jsonl")), prompts(file("prompts.jsonl")),
      pairs(file("pairs.jsonl"));
  for (size_t i = 0; i < 64; ++i) {
    std::string sentence;
    for (size_t k = 0; k < 6; ++k)
      sentence += (k ? " " : "") + words[(i * (k + 3) + k * k) % words.size()];
    const std::string word = words[i % words.size()];
    text << Json{{"text", sentence}} << "\n";
    prompts << Json{{"prompt", sentence}, {"completion", " " + word}} << "\n";
    pairs << Json{{"prompt", sentence}, {"chosen", " " + word}, {"rejected", " the the"}} << "\n";
  }
}

void EngineRunTest::must(std::vector<std::string> arguments) {
  const CommandResult result = retort(std::move(arguments));
  ASSERT_EQ(result.exit_code, 0) << result.output;
}

std::string EngineRunTest::head(const std::string& recipe, const std::string& role,
                                const std::string& other, const std::string& rows) {
  return "recipe: " + recipe + "\nroles:\n  student: {model: " + file("model-1") + "}\n  " + role +
         ": {" + other + "}\ndata: {train: [{path: " + file(rows) +
         "}], max_length: 48}\n"
         "train: {max_steps: 3, per_device_train_batch_size: 4, learning_rate: 1.0e-3}\n";
}

std::string EngineRunTest::grpo(const std::string& rewards, const std::string& roles,
                                int64_t steps) {
  std::string text = head("grpo", "generator", "model: " + file("model-1"), "prompts.jsonl");
  text.replace(text.find("max_steps: 3"), 12, "max_steps: " + std::to_string(steps));
  if (!roles.empty()) text.insert(text.find("data:"), "  " + roles + "\n");
  return text +
         "generation: {num_generations: 4, max_new_tokens: 6, save_samples: true, stop: [' ', 'a', "
         "'d', 'e', 'g', 'h', 'n', 'o', 'r', 's', 't', 'u', 'w']}\n"
         "rewards: [" +
         rewards + "]\ngrpo: {}\n";
}

fs::path EngineRunTest::written(const std::string& name, const std::string& text) {
  const fs::path recipe = file(name + ".yaml");
  write_file_atomically(recipe, "output_dir: " + file(name) + "\n" + text);
  return recipe;
}

fs::path EngineRunTest::launched(const std::string& name, const std::string& text) {
  const CommandResult result = retort({"launch", written(name, text)}, std::chrono::seconds(120));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return file(name);
}

std::vector<Json> EngineRunTest::lines_of(const fs::path& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  // One without an end is still being written.
  for (std::string line; std::getline(in, line) && !in.eof();)
    lines.push_back(Json::parse(line));
  return lines;
}

void EngineRunTest::expect_receipts(const fs::path& run, size_t versions) {
  const std::vector<Json> receipts = lines_of(run / "receipts.jsonl");
  ASSERT_EQ(receipts.size(), versions) << "one for each version";
  for (size_t i = 0; i < receipts.size(); ++i) {
    EXPECT_EQ(receipts[i].at("weight_version"), i + 1);
    EXPECT_TRUE(receipts[i].at("accepted").get<bool>());
    EXPECT_LT(receipts[i].at("largest_difference").get<double>(), 1e-4);
    EXPECT_GT(receipts[i].at("tokens").get<int>(), 48);
  }
}

void EngineRunTest::expect_own_log_probs(const fs::path& run) {
  const auto differences = column(run, "sampling_logp_difference/mean");
  const auto sizes = column(run, "sampling_ratio/effective_sample_size");
  EXPECT_FALSE(differences.empty());
  EXPECT_FALSE(sizes.empty());
  for (const double difference : differences)
    EXPECT_LT(difference, 1e-4);
  for (const double size : sizes)
    EXPECT_GT(size, 0.999);
}

void EngineRunTest::expect_learnt(const fs::path& run) {
  const auto losses = column(run, "loss");
  EXPECT_TRUE(std::any_of(losses.begin(), losses.end(), [](double loss) { return loss != 0; }))
      << "all samples of a prompt had the same reward";
}

void EngineRunTest::expect_same_losses(const fs::path& got, const fs::path& expected,
                                       double tolerance) {
  const auto losses = column(got, "loss"), wanted = column(expected, "loss");
  ASSERT_GE(losses.size(), 3u);
  ASSERT_EQ(losses.size(), wanted.size());
  double largest = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], wanted[i], tolerance * std::abs(wanted[i])) << "step " << i + 1;
    largest = std::max(largest, std::abs(losses[i] - wanted[i]) / std::abs(wanted[i]));
  }
  std::cout << got.filename().string() << ": losses differ by " << largest << " of themselves\n";
}

}  // namespace retort::test
