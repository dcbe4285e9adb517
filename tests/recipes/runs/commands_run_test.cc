// The commands of the program that no other test runs, and that no command is left out.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/file.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

// The last line of what a command printed, as JSON.
nlohmann::json last_line(const CommandResult& result) {
  std::istringstream lines(result.output);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  return nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
}

// The file's first `count` lines in another file.
fs::path first_lines(const fs::path& from, size_t count, const fs::path& to) {
  std::ifstream in(from);
  std::ofstream out(to);
  std::string line;
  for (size_t i = 0; i < count && std::getline(in, line); ++i)
    out << line << "\n";
  return to;
}

// Where each command is run, of the folder of tests, and a text by which that test is known.
const std::map<std::string, std::pair<std::string, std::string>> kTests{
    {"launch", {"recipes/runs/golden_run_test.cc", "retort({\"launch\""}},
    {"join", {"recipes/run_support/joined_run.cc", "\"join\""}},
    {"status", {"recipes/runs/resume_run_test.cc", "\"status\""}},
    {"eval", {"recipes/runs/commands_run_test.cc", "retort({\"eval\""}},
    {"generate", {"recipes/runs/generate_run_test.cc", "retort({\"generate\""}},
    {"chat", {"recipes/runs/commands_run_test.cc", " chat --model "}},
    {"cache", {"recipes/run_support/cache_support.cc", "args{\"cache\""}},
    {"audit", {"recipes/runs/kto_run_test.cc", "retort({\"audit\""}},
    {"check", {"recipes/runs/check_run_test.cc", "retort({\"check\""}},
    {"plan", {"recipes/runs/commands_run_test.cc", "retort({\"plan\""}},
    {"doctor", {"launch/commands/doctor_run_test.cc", "retort({\"doctor\""}},
    {"probe", {"engines/judge_run_test.cc", "\"probe\""}},
    {"model init", {"recipes/runs/commands_run_test.cc", "retort({\"model\", \"init\""}},
    {"model export", {"recipes/runs/commands_run_test.cc", "retort({\"model\", \"export\""}},
    {"model convert", {"recipes/runs/commands_run_test.cc", "retort({\"model\", \"convert\""}},
    {"model merge", {"recipes/runs/lora_run_test.cc", "retort({\"model\", \"merge\""}},
    {"vocab add", {"recipes/runs/commands_run_test.cc", "retort({\"vocab\", \"add\""}},
    {"tokenizer train", {"recipes/runs/commands_run_test.cc", "retort({\"tokenizer\", \"train\""}},
    {"data arithmetic", {"recipes/runs/commands_run_test.cc", "retort({\"data\", \"arithmetic\""}},
};

// The names that `--help` lists below "Subcommands:".
std::vector<std::string> listed(std::vector<std::string> command) {
  command.push_back("--help");
  std::istringstream lines(retort(command).output);
  std::vector<std::string> names;
  bool below = false;
  for (std::string line; std::getline(lines, line);) {
    if (below && line.starts_with("  ") && line.size() > 2 && line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
    if (line.find("ubcommands:") != std::string::npos ||
        line.find("UBCOMMANDS:") != std::string::npos)
      below = true;
  }
  return names;
}

TEST(Commands, EachIsRunByATest) {
  std::set<std::string> all;
  for (const std::string& name : listed({})) {
    const std::vector<std::string> below = listed({name});
    if (below.empty()) all.insert(name);
    for (const std::string& part : below)
      all.insert(name + " " + part);
  }
  ASSERT_GE(all.size(), 15u);

  std::set<std::string> tested;
  for (const auto& [command, where] : kTests) {
    tested.insert(command);
    const std::string text = read_file(source_folder() / "tests" / where.first);
    EXPECT_NE(text.find(where.second), std::string::npos) << command << " in " << where.first;
  }
  EXPECT_EQ(all, tested);
}

TEST(Commands, AWordThatIsNoneIsToldTheNearest) {
  for (const auto& [word, near] :
       {std::pair{"train", "launch"}, std::pair{"lanch", "launch"}, std::pair{"evl", "eval"}}) {
    const CommandResult said = retort({word, "recipe.yaml"});
    EXPECT_EQ(said.exit_code, 2) << said.output;
    EXPECT_NE(said.output.find("retort has no command '" + std::string(word) + "'; did you mean '" +
                               near + "'?"),
              std::string::npos)
        << said.output;
  }
}

// The rows of the first step of a golden run: PyTorch's loss, from the tokens of the output too.
TEST(EvalRun, TheLossIsPyTorchs) {
  TemporaryFolder folder;
  const fs::path data = first_lines(goldens() / "rows.jsonl", 4, folder / "rows.jsonl");
  for (const char* batch : {"1", "3"}) {
    const CommandResult result =
        retort({"eval", "--model", goldens() / "qwen3", "--data", data, "--output",
                folder / "tokens.jsonl", "--max-length", "64", "--batch-size", batch});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const nlohmann::json got = last_line(result);
    const double want = golden_cases("expected").at("sft_qwen3").at("losses")[0];
    EXPECT_NEAR(got.at("loss"), want, 1e-5 * want);
    EXPECT_NEAR(got.at("perplexity"), std::exp(want), 1e-3);
    EXPECT_EQ(got.at("num_samples"), 4);

    double sum = 0;
    int64_t targets = 0;
    for (const nlohmann::json& row : read_lines(folder / "tokens.jsonl")) {
      ASSERT_EQ(row.at("logps").size() + 1, row.at("token_ids").size());
      for (size_t i = 0; i < row.at("logps").size(); ++i)
        if (row.at("targets")[i] == 1) {
          sum -= row.at("logps")[i].get<double>();
          ++targets;
        }
    }
    EXPECT_EQ(targets, got.at("num_tokens"));
    EXPECT_NEAR(sum / static_cast<double>(targets), want, 1e-5 * want);
  }
}

// Each turn is what `generate` says of the same text: this checkpoint has no template.
TEST(ChatRun, AnswersAsGenerateDoes) {
  TemporaryFolder folder;
  const fs::path prompts = folder / "prompts.jsonl";
  std::ofstream(prompts) << R"({"prompt": "w21"})"
                         << "\n"
                         << R"({"prompt": "w9 w48 w0"})"
                         << "\n";
  const CommandResult generated =
      retort({"generate", "--model", goldens() / "qwen3", "--prompts", prompts, "--output",
              folder / "out.jsonl", "--temperature", "0", "--max-new-tokens", "9"});
  ASSERT_EQ(generated.exit_code, 0) << generated.output;

  Command chat({"bash", "-c",
                "printf 'w21\\nw9 w48 w0\\n/reset\\nw21\\n\\nw9\\n' | " + retort_binary() +
                    " chat --model " + (goldens() / "qwen3").string() +
                    " --temperature 0 --max-new-tokens 9"});
  const CommandResult result = chat.wait();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto rows = read_lines(folder / "out.jsonl");
  const std::string one = rows.at(0).at("completions")[0], two = rows.at(1).at("completions")[0];
  ASSERT_FALSE(one.empty());
  ASSERT_NE(one, two);
  // An empty line ends it: what follows is not answered.
  const std::string talk = "> " + one + "\n> " + two + "\n> > " + one + "\n> ";
  EXPECT_TRUE(result.output.ends_with(talk)) << result.output << "\nexpected at its end:\n" << talk;
}

// From nothing to a trained checkpoint by commands alone.
class FromNothing : public testing::Test {
 protected:
  CommandResult done(const CommandResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(FromNothing, ProblemsDependOnTheirNumberAndSeed) {
  const auto problems = [&](const std::string& first, const std::string& count,
                            const std::string& seed, bool preferences = false) {
    const fs::path file = folder_ / (first + "-" + count + "-" + seed);
    std::vector<std::string> args;
    done(preferences ? retort({"data", "arithmetic", "--output", file, "--first", first, "--count",
                               count, "--seed", seed, "--preferences"})
                     : retort({"data", "arithmetic", "--output", file, "--first", first, "--count",
                               count, "--seed", seed}));
    return read_lines(file);
  };
  const auto all = problems("0", "8", "1");
  const auto some = problems("5", "3", "1");
  ASSERT_EQ(all.size(), 8u);
  ASSERT_EQ(some.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(some[i], all[5 + i]);
  EXPECT_NE(problems("5", "3", "2"), some);
  for (const nlohmann::json& pair : problems("0", "4", "3", true))
    EXPECT_NE(pair.at("chosen"), pair.at("rejected"));
}

TEST_F(FromNothing, RowsWithCallsAreWrittenAndWrongOptionsTold) {
  const fs::path file = folder_ / "rows.jsonl";
  const auto made = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"data", "arithmetic", "--output", file.string()});
    return retort(options);
  };
  const CommandResult calls = made({"--tools", "--count", "3", "--digits", "3"});
  ASSERT_EQ(calls.exit_code, 0) << calls.output;
  EXPECT_NE(calls.output.find("problems 0 to 2 of 648000"), std::string::npos) << calls.output;
  const auto conversations = read_lines(file);
  done(made({"--tools", "--prompts", "--count", "3", "--digits", "3"}));
  const auto questions = read_lines(file);
  ASSERT_EQ(conversations.size(), 3u);
  ASSERT_EQ(questions.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(conversations[i].at("messages").size(), 4u);
    EXPECT_EQ(questions[i].at("messages").at(0), conversations[i].at("messages").at(0));
  }

  // Each is told by its name, and nothing is written.
  fs::remove(file);
  using Options = std::vector<std::string>;
  for (const auto& [options, told] :
       {std::pair{Options{"--tools", "--digits", "1"}, "factors of 1 digits"},
        std::pair{Options{"--tools", "--digits", "10"}, "expected 2 to 9"},
        std::pair{Options{"--tools", "--digits", "two"}, "--digits"},
        std::pair{Options{"--digits", "3"}, "--digits requires --tools"},
        std::pair{Options{"--prompts"}, "--prompts requires --tools"},
        std::pair{Options{"--tools", "--preferences"}, "--preferences excludes --tools"},
        std::pair{Options{"--tools", "--mistakes", "9"}, "--mistakes excludes --tools"},
        std::pair{Options{"--tools", "--digits", "2", "--first", "6480"}, "there are 6480"},
        std::pair{Options{"--tools", "--count", "-1"}, "were asked for"}}) {
    const CommandResult refused = made(options);
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_NE(refused.output.find(told), std::string::npos) << refused.output;
    EXPECT_FALSE(fs::exists(file)) << told;
  }
}

TEST_F(FromNothing, ATokenizerAModelAPlanARunAndAnExport) {
  const fs::path data = folder_ / "data.jsonl", tokenizer = folder_ / "tokenizer";
  done(retort({"data", "arithmetic", "--output", data, "--count", "200"}));
  done(
      retort({"tokenizer", "train", "--data", data, "--vocab-size", "300", "--output", tokenizer}));
  const fs::path model = folder_ / "model";
  done(retort({"model", "init", "--arch", "qwen3", "--tokenizer", tokenizer, "--output", model,
               "--hidden-size", "16", "--num-hidden-layers", "2", "--num-attention-heads", "2",
               "--head-dim", "8", "--max-position-embeddings", "256"}));
  ASSERT_FALSE(HasFailure());

  // A model whose numbers say nothing yet: its loss is close to log of the vocabulary.
  const auto loss_of = [&](const fs::path& checkpoint) {
    return last_line(done(retort({"eval", "--model", checkpoint, "--data", data})))
        .at("loss")
        .get<double>();
  };
  const double before = loss_of(model);
  EXPECT_NEAR(before, std::log(300.0), 0.3);

  // The plan counts the parameters that the file has, and what is trained is better.
  const fs::path recipe = folder_ / "recipe.yaml";
  std::ofstream(recipe)
      << "recipe: sft\noutput_dir: " << (folder_ / "run").string()
      << "\nroles: {student: {model: " << model.string()
      << ", world: {threads: 1}}}\ndata: {train: [{path: " << data.string()
      << "}], max_length: 128}\ntrain: {max_steps: 30, "
         "per_device_train_batch_size: 8, learning_rate: 1.0e-2, save_steps: 0}\n";
  const nlohmann::json plan =
      nlohmann::json::parse(done(retort({"plan", recipe, "--json"})).output);
  const auto parameters = plan.at("roles").at(0).at("parameters").get<int64_t>();
  const auto bytes = static_cast<int64_t>(fs::file_size(model / "model.safetensors"));
  EXPECT_GT(bytes, 4 * parameters);
  EXPECT_LT(bytes, 4 * parameters + 8192) << "the weights and a header";
  done(retort({"launch", recipe}));
  EXPECT_LT(loss_of(folder_ / "run/final"), 0.6 * before);

  const fs::path file = folder_ / "model.gguf";
  const nlohmann::json exported = last_line(
      done(retort({"model", "export", folder_ / "run/final", "--output", file, "--dtype", "f32"})));
  EXPECT_TRUE(read_file(file).starts_with("GGUF"));
  EXPECT_EQ(exported.at("architecture"), "qwen3");
  // embedding, head or not, norm; of a layer 2 norms, q k v o and their 2 norms, 3 of the MLP
  EXPECT_GE(exported.at("num_tensors"), 2 + 2 * 11);
  EXPECT_EQ(exported.at("num_bytes"), static_cast<int64_t>(fs::file_size(file)));
}

// Each command's folder is a model for the next one.
TEST_F(FromNothing, AModelIsConvertedAndGivenMoreTokens) {
  const fs::path model = goldens() / "qwen2", half = folder_ / "half", more = folder_ / "more";
  const nlohmann::json converted =
      last_line(done(retort({"model", "convert", model, "--output", half, "--dtype", "bf16",
                             "--max-shard-size", "4KiB"})));
  EXPECT_EQ(converted.at("dtype"), "bfloat16");
  EXPECT_TRUE(fs::exists(half / "model.safetensors.index.json"));
  const nlohmann::json added =
      last_line(done(retort({"vocab", "add", half, "--tokens", "<a>", "<b>", "w3", "--special",
                             "--init", "copy", "--from", "w7", "--output", more})));
  EXPECT_EQ(added.at("num_added"), 2);
  EXPECT_EQ(added.at("first_id"), 64);
  EXPECT_EQ(added.at("vocab_size"), 66);
  EXPECT_NE(read_file(more / "tokenizer.json").find("<b>"), std::string::npos);
  const double loss = last_line(done(retort({"eval", "--model", more, "--data",
                                             goldens() / "rows.jsonl", "--max-length", "64"})))
                          .at("loss")
                          .get<double>();
  EXPECT_TRUE(std::isfinite(loss));

  // What says nothing is refused, and leaves nothing behind.
  const fs::path none = folder_ / "none";
  EXPECT_EQ(retort({"model", "convert", model, "--output", none, "--dtype", "int8"}).exit_code, 2);
  EXPECT_EQ(retort({"model", "convert", model, "--output", half}).exit_code, 2) << "not empty";
  EXPECT_EQ(retort({"vocab", "add", model, "--tokens", "x", "--init", "copy", "--output", none})
                .exit_code,
            2);
  EXPECT_EQ(
      retort({"vocab", "add", model, "--tokens", "x", "--seed", "3", "--output", none}).exit_code,
      2);
  EXPECT_FALSE(fs::exists(none));
}

}  // namespace
}  // namespace retort::test
