// Whole runs in which an engine of others plays a role, and the same runs with roles of ours: two
// small models with one tokenizer, and rows for each recipe.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

// The folder of the tests has tokenizer, model-1 (the student), model-2 (which engines serve), both
// in fp32; text.jsonl, prompts.jsonl and pairs.jsonl.
class EngineRunTest : public testing::Test {
 protected:
  static void make_files();
  static void remove_files() { files_.reset(); }

  static std::string file(const std::string& name) { return files_->path() / name; }
  // `retort` with these arguments must succeed.
  static void must(std::vector<std::string> arguments);

  // A recipe of 3 steps: the student is model-1, `role` is `other`.
  static std::string head(const std::string& recipe, const std::string& role,
                          const std::string& other, const std::string& rows);
  // grpo with a generator of ours and these rewards, their `roles` among the others. Completions
  // are of different lengths; samples are saved.
  static std::string grpo(const std::string& rewards, const std::string& roles = "",
                          int64_t steps = 3);
  // The key that gives model-2 to a role of ours.
  static std::string ours() { return "model: " + file("model-2"); }

  // A recipe of `text`, whose run goes to file(name).
  static fs::path written(const std::string& name, const std::string& text);
  // Runs it to its end, and returns the run's folder.
  static fs::path launched(const std::string& name, const std::string& text);
  // The objects of a file of the run, one for each line.
  static std::vector<nlohmann::json> lines_of(const fs::path& file);
  // receipts.jsonl has versions 1 to `versions`, each found within 1e-4 nats.
  static void expect_receipts(const fs::path& run, size_t versions);
  // The trainer's own probabilities of what was drawn are the engine's.
  static void expect_own_log_probs(const fs::path& run);
  // Samples got different rewards, so that there was something to learn.
  static void expect_learnt(const fs::path& run);
  // Every step of two runs.
  static void expect_same_losses(const fs::path& got, const fs::path& expected, double tolerance);

 private:
  static void make_rows();
  inline static std::unique_ptr<TemporaryFolder> files_;
};

}  // namespace retort::test
