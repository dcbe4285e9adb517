// Whole runs whose completions a real llama.cpp server judges in words, beside the same runs with a
// program of ours that asks the same server.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <regex>

#include "base/file.h"
#include "tests/engines/engine_run.h"
#include "tests/engines/llamacpp/real_server.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;
using engines::test::RealServer, engines::test::TinyModel, engines::test::engines_python;
using Json = nlohmann::json;

class JudgeRunTest : public EngineRunTest {
 protected:
  static void SetUpTestSuite() {
    if (!engines_python()) return;
    make_files();
    model_ = std::make_unique<TinyModel>();
    server_ = std::make_unique<RealServer>(
        model_->gguf(),
        std::vector<std::string>{"--slots", "4", "--context", "256", "--alias", "tiny"});
    std::ofstream(file("judge.jinja")) << "Rate '{{ completion }}' after '{{ question }}'.";
  }
  static void TearDownTestSuite() {
    server_.reset();
    model_.reset();
    remove_files();
  }
  void SetUp() override {
    if (!engines_python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON names no Python with xllamacpp";
  }

  static std::string role() {
    return "judge: {external: {engine: openai, url: ['" + server_->url() +
           "/v1'], timeout: 30s, load_timeout: 60s}}";
  }
  static std::string judge(const std::string& file) {
    return "{type: judge, role: judge, template: " + file +
           ", pattern: '([0-9]+)', scale: 0.1, max_new_tokens: 64}, " + kOther;
  }
  static std::string program() {
    return "{type: command, name: judge, argv: [" + engines_python().value() + ", " +
           (source_folder() / "tests/engines/ask_judge.py").string() + ", '" + server_->url() +
           "']}, " + kOther;
  }
  static const std::string& server_url() { return server_->url(); }
  static constexpr const char* kOther = "{type: length, min: 2, max: 4, weight: 0.5}";

 private:
  inline static std::unique_ptr<TinyModel> model_;
  inline static std::unique_ptr<RealServer> server_;
};

TEST_F(JudgeRunTest, IsTheRunOfAProgramThatAsksTheSame) {
  const fs::path run = launched("judged", grpo(judge(file("judge.jinja")), role()));
  const fs::path ours = launched("asked", grpo(program()));
  expect_learnt(run);
  EXPECT_EQ(column(run, "reward"), column(ours, "reward"));
  EXPECT_EQ(column(run, "rewards/judge"), column(ours, "rewards/judge"));
  EXPECT_EQ(column(run, "rewards/judge/num_missing"), column(ours, "rewards/judge/num_missing"));
  EXPECT_EQ(column(run, "rewards/judge").size(), 3u);
  expect_same_losses(run, ours, 0);

  // What the probe found, how often the role was asked, and that words may differ.
  const Json contract = Json::parse(read_file(run / "contracts/judge.json"));
  EXPECT_TRUE(contract.at("writes").get<bool>());
  EXPECT_TRUE(contract.at("words_stop_at_limit").get<bool>());
  EXPECT_EQ(contract.at("served_model"), "tiny");
  EXPECT_FALSE(column(run, "rpc/judge/judge.answer/calls").empty());
  EXPECT_FALSE(Json::parse(read_file(run / "status.json")).at("reproducible").get<bool>());
  const std::string log = read_file(run / "logs/student-0.log");
  EXPECT_TRUE(std::regex_search(
      log, std::regex("[0-9]+ of the first [0-9]+ answers name a number; asked: 'Rate")));
  EXPECT_EQ(read_file(run / "templates/0.jinja"), read_file(file("judge.jinja")));
}

// The run's own process of the role is killed while it asks: it comes back, and the batch is asked
// for again.
TEST_F(JudgeRunTest, RoleThatIsKilledComesBack) {
  const fs::path run = file("killed");
  const auto rewards = judge(file("judge.jinja"));
  Command launch(
      {retort_binary(), "launch", written("killed", grpo(rewards, role(), 40)).string()});
  ASSERT_TRUE(wait_until([&] { return metrics_rows(run) >= 3; }, 60s));
  const int pid = role_process(run.parent_path(), "judge");
  ASSERT_GT(pid, 0);
  ::kill(pid, SIGKILL);
  const CommandResult result = launch.wait(120s);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("1 of 3 times"), std::string::npos) << result.output;
  expect_same_losses(run, launched("killed-ours", grpo(program(), "", 40)), 0);
}

TEST_F(JudgeRunTest, WhatCannotBeIsRefusedBeforeTheRun) {
  std::ofstream(file("wrong.jinja")) << "Rate\n{% if %}";
  const auto refused = [&](const std::string& part, const std::string& text) {
    const CommandResult result = retort({"launch", written("refused", text)}, 60s);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
    EXPECT_EQ(metrics_rows(file("refused")), 0u);
  };
  refused("wrong.jinja", grpo(judge(file("wrong.jinja")), role()));
  refused("none.jinja", grpo(judge(file("none.jinja")), role()));
  refused("openai gives no number for a completion", grpo("{type: model, role: judge}", role()));
}

// A question belongs to the run, which goes on with the same one.
TEST_F(JudgeRunTest, ChangedTemplateIsRefusedOnResume) {
  std::ofstream(file("changed.jinja")) << "Rate '{{ completion }}'.";
  const fs::path run = launched("changed", grpo(judge(file("changed.jinja")), role()));
  std::ofstream(file("changed.jinja")) << "Rate {{ completion }}.";
  const CommandResult result = retort(
      {"launch", (run.parent_path() / "changed.yaml").string(), "--resume", "train.max_steps=4"},
      60s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("is not the one that the run began with"), std::string::npos)
      << result.output;
  must({"launch", (run.parent_path() / "changed.yaml").string(), "--overwrite"});

  // Its copy in the run is no template to begin anew with: it would be removed first.
  const CommandResult own =
      retort({"launch", (run.parent_path() / "changed.yaml").string(), "--overwrite",
              "rewards.0.template=" + (run / "templates/0.jinja").string()},
             60s);
  EXPECT_NE(own.output.find("which --overwrite would empty"), std::string::npos) << own.output;
  EXPECT_TRUE(fs::exists(run / "templates/0.jinja"));
}

// As a user looks at a server before there is a recipe.
TEST_F(JudgeRunTest, ProbeShowsWhatItSays) {
  const CommandResult result =
      retort({"probe", server_url(), "--engine", "openai", "--for", "words"}, 60s);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("answers in words"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("same words"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace retort::test
