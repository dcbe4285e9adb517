// Every recipe of recipes/configs that needs nothing from elsewhere is run for two steps, on data
// and models that are made as prepare.sh and demo.sh make them, but smaller.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

// These name models or data of others, or hosts; they are checked, and planned, without a run
// (tests/launch/recipe/real_model_recipes_test.cc, tests/launch/recipe/example_recipes_test.cc).
const std::set<std::string> kOfOthers{"dpo_gsm8k", "grpo_vllm_two_hosts", "qwen3_8b_lora_dpo",
                                      "qwen3_8b_to_1.7b"};
// These make what the others start from.
const std::vector<std::string> kFirst{"prepare_teacher", "prepare_student", "sft_teacher",
                                      "sft_tools"};

fs::path config(const std::string& name) {
  return source_folder() / "recipes/configs" / (name + ".yaml");
}

// Those to run, in an order in which each finds its models.
std::vector<std::string> configs() {
  std::vector<std::string> names = kFirst;
  for (const auto& entry : fs::directory_iterator(source_folder() / "recipes/configs")) {
    const std::string name = entry.path().stem().string();
    const bool later = entry.path().extension() == ".yaml" && !kOfOthers.contains(name) &&
                       std::ranges::count(kFirst, name) == 0;
    if (later) names.push_back(name);
  }
  std::sort(names.begin() + std::ssize(kFirst), names.end());
  return names;
}

// Recipes name their files from the folder that they are launched in.
class ExampleConfigs : public testing::Test {
 protected:
  ExampleConfigs() : before_(fs::current_path()) {
    fs::create_directories(folder_ / "runs/recipes/tools");
    fs::create_directory_symlink("recipes", folder_ / "runs/demo");
    // Some name files of the repository, too.
    for (const char* part : {"python", "recipes", "share"})
      fs::create_directory_symlink(source_folder() / part, folder_ / part);
    fs::current_path(folder_.path());
  }
  ~ExampleConfigs() override { fs::current_path(before_); }

  static void done(const std::vector<std::string>& words) {
    const auto result = retort(words, std::chrono::seconds(120));
    ASSERT_EQ(result.exit_code, 0) << words[0] << " " << words[1] << "\n" << result.output;
  }

  static void make_data() {
    const std::string out = "runs/recipes/";
    for (const std::string set : {"train", "test"}) {
      const std::vector<std::string> rows{"--first", set == "train" ? "0" : "200",
                                          "--count", set == "train" ? "200" : "40",
                                          "--seed",  "1"};
      const std::string pairs = out + (set == "train" ? "pairs" : "test_pairs") + ".jsonl";
      std::vector<std::string> plain{"data", "arithmetic", "--output", out + set + ".jsonl"};
      std::vector<std::string> of_pairs{"data", "arithmetic", "--preferences", "--output", pairs};
      plain.insert(plain.end(), rows.begin(), rows.end());
      of_pairs.insert(of_pairs.end(), rows.begin(), rows.end());
      done(plain);
      done(of_pairs);
      if (set == "train") {
        plain[3] = out + "noisy.jsonl";
        plain.push_back("--mistakes");
        plain.push_back("50");
        done(plain);
      }
      write_labels(pairs, out + (set == "train" ? "labels" : "test_labels") + ".jsonl");
    }
  }
  // Conversations with calls, and questions.
  static void make_data_with_calls() {
    const std::string out = "runs/recipes/tools/";
    for (const std::string set : {"", "test_"}) {
      const std::vector<std::string> rows{"--tools", "--first", set.empty() ? "0" : "200",
                                          "--count", set.empty() ? "200" : "40"};
      std::vector<std::string> words{"data", "arithmetic", "--output", out + set + "calls.jsonl"};
      words.insert(words.end(), rows.begin(), rows.end());
      done(words);
      words[3] = out + set + "prompts.jsonl";
      words.push_back("--prompts");
      done(words);
    }
  }
  // As pairs_to_labels.py.
  static void write_labels(const fs::path& pairs, const fs::path& labels) {
    std::ofstream file(labels);
    for (const nlohmann::json& pair : read_lines(pairs))
      for (const bool label : {true, false})
        file << nlohmann::json{{"prompt", pair.at("prompt")},
                               {"completion", pair.at(label ? "chosen" : "rejected")},
                               {"label", label}}
                    .dump()
             << "\n";
  }

  static void make_models() {
    const std::string out = "runs/recipes/";
    make_tokenizer(out + "train.jsonl", out + "tokenizer");
    make_model(out + "tokenizer", out + "teacher-init", "48");
    make_model(out + "tokenizer", out + "student-init", "32");
    make_tokenizer(out + "tools/calls.jsonl", out + "tools/tokenizer");
    make_model(out + "tools/tokenizer", out + "tools/init", "32");
  }
  static void make_tokenizer(const std::string& rows, const std::string& output) {
    done({"tokenizer", "train", "--data", rows, "--vocab-size", "400", "--output", output});
  }
  static void make_model(const std::string& tokenizer, const std::string& output,
                         const std::string& hidden_size) {
    done({"model", "init", "--arch", "qwen3", "--tokenizer", tokenizer, "--output", output,
          "--hidden-size", hidden_size, "--num-hidden-layers", "1", "--num-attention-heads", "2",
          "--num-key-value-heads", "2", "--intermediate-size", "64"});
  }

  TemporaryFolder folder_;
  const fs::path before_;
};

TEST_F(ExampleConfigs, AllTrainAndEvaluate) {
  make_data();
  make_data_with_calls();
  make_models();
  ASSERT_FALSE(HasFailure());

  for (const std::string& name : configs()) {
    SCOPED_TRACE(name);
    std::vector<std::string> words{"launch", config(name).string(), "train.max_steps=2",
                                   "train.eval_steps=2", "train.logging_steps=1"};
    // Of a model that has hardly learned anything no answer is right.
    if (name == "rejection_sampling")
      words.insert(words.end(),
                   {"rejection_sampling.rounds=2", "rejection_sampling.prompts_per_round=20",
                    "rejection_sampling.threshold=0"});
    done(words);
    ASSERT_FALSE(HasFailure());

    // Where the recipe says, with numbers of both steps and of the evaluation.
    std::string output;
    std::ifstream recipe(config(name));
    for (std::string line; std::getline(recipe, line);)
      if (line.starts_with("output_dir: ")) output = line.substr(12);
    const std::vector<double> losses = column(output, "loss");
    EXPECT_EQ(losses.size(), 2u);
    for (const double loss : losses)
      EXPECT_TRUE(std::isfinite(loss));
    EXPECT_FALSE(column(output, "eval_loss").empty() && column(output, "eval_reward").empty());
    EXPECT_TRUE(fs::exists(fs::path(output) / "final/model.safetensors"));
  }
}

}  // namespace
}  // namespace retort::test
