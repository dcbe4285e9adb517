// What the data block does to whole runs: rows that are cut, rows that go on in the next pack, chat
// templates that print a day or come from a file, completions that end at a special token, heads
// with more rows than the tokenizer has ids.
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

fs::path launch(const fs::path& recipe, std::vector<std::string> overrides = {}) {
  std::vector<std::string> args{"launch", recipe.string()};
  args.insert(args.end(), overrides.begin(), overrides.end());
  const auto result = retort(args);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return recipe.parent_path() / "run";
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::string student_log(const fs::path& run) { return read_file(run / "logs/student-0.log"); }

// Twelve texts, of which every third is longer than 16 tokens.
fs::path write_texts(const fs::path& folder) {
  const fs::path path = folder / "texts.jsonl";
  std::ofstream file(path);
  for (int i = 0; i < 12; ++i) {
    file << "{\"text\": \"w" << i;
    for (int word = 1; word < (i % 3 == 0 ? 39 : 9); ++word)
      file << " w" << (i * 5 + word) % 60;
    file << "\"}\n";
  }
  return path;
}

fs::path texts_recipe(const fs::path& folder, const std::string& more) {
  fs::create_directories(folder);
  const fs::path path = folder / "recipe.yaml";
  std::ofstream(path) << "recipe: sft\noutput_dir: " << (folder / "run").string()
                      << "\nroles:\n  student: {model: " << (goldens() / "qwen3").string()
                      << ", world: {dp: 2, threads: 1}}\ndata:\n  train: [{path: "
                      << write_texts(folder).string() << "}]\n  max_length: 16\n"
                      << more << "train:\n  per_device_train_batch_size: 2\n  num_train_epochs: 1\n"
                      << "  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n";
  return path;
}

TEST(Truncation, IsCountedAndTold) {
  TemporaryFolder folder;
  const fs::path run = launch(texts_recipe(folder / "whole", "  packing: false\n"));
  EXPECT_EQ(sum(column(run, "num_truncated")), 4);
  EXPECT_EQ(column(run, "num_tokens").back(), 4 * 16 + 8 * 10);
  EXPECT_NE(student_log(run).find("4 of the 12 rows read so far are longer than data.max_length"),
            std::string::npos);
  EXPECT_EQ(student_log(run).find("4 of the 12 rows"), student_log(run).rfind("4 of the 12 rows"))
      << "once is enough";
}

TEST(Truncation, WrappedRowsLoseNothing) {
  TemporaryFolder folder;
  const fs::path run = launch(texts_recipe(folder / "wrapped", "  packing_strategy: wrapped\n"));
  EXPECT_EQ(sum(column(run, "num_truncated")), 0);
  EXPECT_EQ(column(run, "num_tokens").back(), 4 * 40 + 8 * 10);
  EXPECT_EQ(student_log(run).find("are longer than"), std::string::npos);
}

TEST(Truncation, OfPairsAndOfJudgedCompletionsIsCounted) {
  TemporaryFolder folder;
  OnPolicyRecipe dpo{
      .recipe = "dpo", .data = write_pairs(folder), .reference = "teacher", .rows = 4, .steps = 3};
  const fs::path pairs = launch(write_on_policy(folder / "dpo", dpo), {"data.max_length=6"});
  EXPECT_GT(sum(column(pairs, "num_truncated")), 0);
  EXPECT_LT(sum(column(pairs, "num_truncated")), 12);
  EXPECT_NE(student_log(pairs).find("rows read so far are longer"), std::string::npos);

  OnPolicyRecipe kto = dpo;
  kto.recipe = "kto";
  kto.data = goldens() / "labels.jsonl";
  const fs::path whole = launch(write_on_policy(folder / "kto", kto));
  EXPECT_EQ(sum(column(whole, "num_truncated")), 0);
  const fs::path cut = launch(write_on_policy(folder / "kto-cut", kto), {"data.max_length=10"});
  EXPECT_GT(sum(column(cut, "num_truncated")), 0);
}

// `command` on the recipe says it, and so does the log of a run.
void expect_warning(const fs::path& recipe, const std::vector<std::string>& settings,
                    const std::string& warning) {
  for (const char* command : {"audit", "check"}) {
    std::vector<std::string> args{command, recipe.string()};
    args.insert(args.end(), settings.begin(), settings.end());
    const CommandResult result = retort(args);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find(warning), std::string::npos) << command << ": " << result.output;
  }
  const std::string log = student_log(launch(recipe, settings));
  EXPECT_NE(log.find(warning), std::string::npos);
  EXPECT_EQ(log.find(warning), log.rfind(warning)) << "once is enough";
}

TEST(RowWarnings, RowsBeyondTheModelsPositions) {
  TemporaryFolder folder;
  const fs::path brief = folder / "brief";
  fs::copy(goldens() / "qwen3", brief, fs::copy_options::recursive);
  auto config = nlohmann::json::parse(read_file(brief / "config.json"));
  config["max_position_embeddings"] = 12;
  std::ofstream(brief / "config.json") << config.dump();
  const std::vector<std::string> settings{"roles.student.model=" + brief.string()};
  expect_warning(texts_recipe(folder / "one", "  packing: false\n"), settings,
                 "the longest sequence has 16 tokens");

  const fs::path fits = texts_recipe(folder / "fits", "  packing: true\n");
  EXPECT_EQ(student_log(launch(fits)).find("the longest sequence"), std::string::npos);
}

TEST(RowWarnings, PromptsThatEndInsideAToken) {
  TemporaryFolder folder;
  OnPolicyRecipe dpo{
      .recipe = "dpo", .data = folder / "pairs.jsonl", .reference = "teacher", .rows = 4};
  std::ofstream(folder / "pairs.jsonl")
      << R"({"prompt": "w1 w2", "chosen": " w3", "rejected": " w4"})"
      << "\n"
      << R"({"prompt": "w1 w2", "chosen": "3", "rejected": " w5"})"
      << "\n"
      << R"({"prompt": "w1 w3", "chosen": " w6", "rejected": "4"})"
      << "\n"
      << R"({"prompt": "w1 w4", "chosen": " w7", "rejected": " w8"})"
      << "\n";
  expect_warning(write_on_policy(folder / "one", dpo), {}, "in 2 of 4 rows");
}

// The golden student with a template that prints the day; rows of messages.
fs::path dated_recipe(const fs::path& folder, const std::string& more) {
  fs::create_directories(folder);
  fs::copy(goldens() / "qwen3", folder / "student");
  std::ofstream(folder / "student/chat_template.jinja")
      << "{{ strftime_now('w%d w%m') }}{{ ' ' + mood if mood }}{% for m in messages %} "
         "{% if m.role == 'assistant' %}{% generation %}{{ m.content }} <eos>{% endgeneration %}"
         "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  std::ofstream rows(folder / "chats.jsonl");
  for (int i = 0; i < 8; ++i)
    rows << R"({"messages": [{"role": "user", "content": "w)" << i
         << R"("}, {"role": "assistant", "content": "w)" << i + 20 << " w" << i + 30 << "\"}]}\n";

  const fs::path path = folder / "recipe.yaml";
  std::ofstream(path) << "recipe: sft\noutput_dir: " << (folder / "run").string()
                      << "\nroles:\n  student: {model: " << (folder / "student").string()
                      << ", world: {dp: 2, threads: 1}}\ndata:\n  train: [{path: "
                      << (folder / "chats.jsonl").string() << "}]\n  max_length: 32\n"
                      << more << "train:\n  per_device_train_batch_size: 2\n  max_steps: 4\n"
                      << "  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n"
                      << "  save_steps: 2\n";
  return path;
}

std::string model_bits(const fs::path& run) { return read_file(run / "final/model.safetensors"); }

TEST(TemplateDay, IsThatOnWhichTheRunBegan) {
  TemporaryFolder folder;
  const std::string day = "  template_date: 1999-12-31\n";
  const fs::path whole = launch(dated_recipe(folder / "whole", day));
  const fs::path other = launch(dated_recipe(folder / "other", "  template_date: 1999-12-30\n"));
  EXPECT_NE(column(whole, "loss"), column(other, "loss")) << "the day is trained on";

  // Stopped on that day, and resumed on another one.
  const fs::path recipe = dated_recipe(folder / "resumed", "");
  launch(recipe, {"data.template_date=1999-12-31", "train.max_steps=2"});
  const fs::path resumed = launch(recipe, {"--resume"});
  EXPECT_EQ(column(resumed, "loss"), column(whole, "loss"));
  EXPECT_TRUE(model_bits(resumed) == model_bits(whole));
  const auto state = nlohmann::json::parse(read_file(resumed / "checkpoint-4/state/loop.json"));
  EXPECT_EQ(state.at("template_day"), "1999-12-31");

  // A recipe that says another day does not go on.
  const auto refused = retort({"launch", recipe.string(), "--resume",
                               "data.template_date=2000-10-10", "train.max_steps=6"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("the chat template's settings"), std::string::npos)
      << refused.output;
}

class ChatTemplateFile : public testing::Test {
 protected:
  ChatTemplateFile() { std::ofstream(file_) << text_; }

  const TemporaryFolder folder_;
  const fs::path file_ = folder_ / "other.jinja";
  const std::string text_ =
      "w50 w51{% for m in messages %} {{ m.content }}{% if m.role == 'assistant' %} <eos>{% endif "
      "%}"
      "{% endfor %}";
  // One with the file's template, one with the model's own.
  const std::string day_ = "  template_date: 1999-12-31\n";
  const fs::path recipe_ =
      dated_recipe(folder_ / "other", day_ + "  chat_template: " + file_.string() + "\n");
  const fs::path own_recipe_ = dated_recipe(folder_ / "own", day_);
};

TEST_F(ChatTemplateFile, IsTrainedOnAndSavedWithTheModel) {
  const fs::path other = launch(recipe_);
  const fs::path own = launch(own_recipe_);
  EXPECT_NE(column(other, "loss"), column(own, "loss")) << "it is trained on";

  // So what is served renders as it was trained.
  for (const char* saved : {"final", "checkpoint-2"})
    EXPECT_EQ(read_file(other / saved / "chat_template.jinja"), text_) << saved;
  EXPECT_NE(read_file(own / "final/chat_template.jinja"), text_);

  for (const char* command : {"audit", "check"}) {
    const auto told = retort({command, recipe_.string()});
    EXPECT_EQ(told.exit_code, 0) << told.output;
    EXPECT_NE(told.output.find("of " + file_.string() + "; answers: no marks"), std::string::npos)
        << told.output;
  }
  const auto refused = retort({"audit", recipe_.string(), "data.chat_template=chatlm"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("data.chat_template: no chat template is named 'chatlm'"),
            std::string::npos)
      << refused.output;
}

// What ends its answers ends no completion; what the folder has need not even be a template.
TEST_F(ChatTemplateFile, IsToldToEndAnswersAsNoCompletionEnds) {
  const fs::path padded = folder_ / "padded.jinja";
  std::string ended = text_;
  std::ofstream(padded) << ended.replace(ended.find("<eos>"), 5, "<pad>");
  std::ofstream(folder_ / "other/student/chat_template.jinja") << "{% if %}";
  for (const char* command : {"audit", "check"}) {
    const auto told = retort({command, recipe_.string(), "data.chat_template=" + padded.string()});
    EXPECT_EQ(told.exit_code, 0) << told.output;
    EXPECT_NE(told.output.find("the template ends an answer with '<pad>' (token 62), and a"),
              std::string::npos)
        << told.output;
    const auto silent = retort({command, recipe_.string()});
    EXPECT_EQ(silent.output.find("the template ends an answer"), std::string::npos)
        << silent.output;
  }

  // The same of the model's own template, where the rows have messages for it.
  std::ofstream(folder_ / "own/student/chat_template.jinja") << ended;
  const std::string texts = "data.train=[{path: " + write_texts(folder_.path()).string() + "}]";
  for (const char* command : {"audit", "check"}) {
    const auto told = retort({command, own_recipe_.string()});
    EXPECT_EQ(told.exit_code, 0) << told.output;
    for (const char* part : {"the student's chat template: the template ends an answer with "
                             "'<pad>' (token 62), and a completion of ",
                             " ends at '<eos>' (token 63)", "\"eos_token_id\": [63, 62]"})
      EXPECT_NE(told.output.find(part), std::string::npos) << part << ": " << told.output;
    const auto silent = retort({command, own_recipe_.string(), texts});
    EXPECT_EQ(silent.exit_code, 0) << silent.output;
    EXPECT_EQ(silent.output.find("the template ends an answer"), std::string::npos)
        << silent.output;
  }
}

TEST(TemplateVariables, AreTrainedOn) {
  TemporaryFolder folder;
  const std::string day = "  template_date: 1999-12-31\n";
  const fs::path plain = launch(dated_recipe(folder / "plain", day));
  const fs::path moody =
      launch(dated_recipe(folder / "moody", day + "  chat_template_kwargs: {mood: w5}\n"));
  EXPECT_EQ(column(moody, "num_tokens").at(0), column(plain, "num_tokens").at(0) + 8)
      << "a word more in each row of the step";
}

TEST(StopStrings, MayBeSpecialTokens) {
  TemporaryFolder folder;
  constexpr int64_t kPad = 62;
  OnPolicyRecipe recipe{.data = write_prompts(folder), .steps = 2};
  recipe.generation["max_new_tokens"] = "50";
  recipe.generation["save_samples"] = "true";
  recipe.generation["stop"] = "['<pad>']";
  const fs::path run = launch(write_on_policy(folder / "stop", recipe));
  int64_t stopped = 0;
  int64_t samples = 0;
  for (const auto& [key, row] : read_samples(run)) {
    const auto ids = row.at("token_ids").get<std::vector<int64_t>>();
    ++samples;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != kPad) continue;
      ++stopped;
      EXPECT_EQ(i + 1, ids.size()) << "sample " << key.second << " goes on";
    }
  }
  EXPECT_EQ(samples, 16);
  EXPECT_GT(stopped, 2) << "or the test shows nothing";
}

// The golden model has six rows of the head above the tokenizer's ids, with as much mass as others.
TEST(PaddedHead, SampledAndTrainedDistributionsAreTheSame) {
  TemporaryFolder folder;
  for (const std::string world : {"", ", tp: 2"}) {
    OnPolicyRecipe recipe{.data = write_prompts(folder),
                          .student_model = "padded",
                          .generator_model = "padded",
                          .reference = "padded",
                          .steps = 1,
                          .block = {{"sampling_correction", "token_truncate"}, {"beta", "0.1"}},
                          .student_world = world};
    recipe.generation["temperature"] = "0.7";
    const fs::path path = write_on_policy(folder / ("grpo" + world.substr(0, 1)), recipe);
    const auto checked = retort({"check", path.string()});
    EXPECT_EQ(checked.exit_code, 0) << checked.output;
    const fs::path run = launch(path);
    EXPECT_LT(column(run, "sampling_logp_difference/mean").at(0), 1e-5) << world;
    EXPECT_NEAR(column(run, "sampling_ratio/mean").at(0), 1.0, 1e-5) << world;
    EXPECT_LT(column(run, "kl").at(0), 1e-6) << world << ": the reference is the student";
  }
}

// A teacher that is the student has nothing to teach, whatever the rows hold that are not drawn.
TEST(PaddedHead, ATeacherThatIsTheStudentGivesNoGradient) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.recipe = "on_policy_distill",
                        .data = write_prompts(folder),
                        .student_model = "padded",
                        .generator_model = "padded",
                        .teacher = "padded",
                        .rows = 4,
                        .steps = 1,
                        .block = {{"teachers", "[{role: teacher}]"},
                                  {"loss_type", "reverse_kl"},
                                  {"payload", "target_logps"},
                                  {"use_policy_gradient", "true"}},
                        .generation = {{"max_new_tokens", "10"}},
                        .data_extra = "  packing: false\n"};
  const fs::path run = launch(write_on_policy(folder / "distill", recipe));
  EXPECT_NEAR(column(run, "kd_loss").at(0), 0, 1e-6);
  EXPECT_LT(column(run, "grad_norm").at(0), 1e-4);
}

}  // namespace
}  // namespace retort::test
