// Whole runs with a teacher that has another tokenizer: beside TRL's own loss in a plain loop and
// TRL's whole trainer; split over ranks; killed and resumed; with input that is refused; and as a
// policy gradient over spans of bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/killed_run.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

using Settings = std::vector<std::string>;

constexpr const char* kStudent = "cross_student";
const std::string kWorld = "roles.student.world.";

nlohmann::json golden(const std::string& name) { return golden_cases("cross").at(name); }

// A run of a golden case reports what the golden has, and ends with its weights.
void expect_golden(const std::string& name, const Settings& settings = {}) {
  TemporaryFolder folder;
  const nlohmann::json want = golden(name);
  const fs::path run = run_recipe_text(folder.path(), want.at("recipe"), settings);
  ASSERT_FALSE(testing::Test::HasFailure());

  std::vector<std::string> keys;
  for (const auto& [key, values] : want.items())
    if (key != "recipe") keys.push_back(key);
  ASSERT_GE(keys.size(), 2u);
  expect_columns(run, want, keys, 0);
  // The trainer's case has the rows and the loss of another one, whose changes are kept.
  const std::string changes = name == "trainer" ? "uld_mixed" : name;
  expect_same_parameters(run, kStudent, "cross_changes", changes);
}

// ---- beside TRL

class CrossTokenizerRun : public testing::TestWithParam<std::string> {};

TEST_P(CrossTokenizerRun, MatchesTrl) { expect_golden(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cases, CrossTokenizerRun,
                         testing::Values("uld", "uld_full", "uld_mixed", "gold", "gold_reverse",
                                         "trainer"),
                         [](const auto& info) { return info.param; });

struct Split {
  std::string name, golden;
  Settings settings;
};

class CrossTokenizerLayouts : public testing::TestWithParam<Split> {};

TEST_P(CrossTokenizerLayouts, MatchTrl) { expect_golden(GetParam().golden, GetParam().settings); }

INSTANTIATE_TEST_SUITE_P(
    Splits, CrossTokenizerLayouts,
    testing::Values(
        Split{"dp", "uld_mixed", {kWorld + "dp=2", "train.per_device_train_batch_size=2"}},
        Split{"accumulated",
              "uld_mixed",
              {"train.per_device_train_batch_size=1", "train.gradient_accumulation_steps=4"}},
        Split{"tp", "gold", {kWorld + "tp=2"}},
        Split{"pp_and_teacher_tp", "uld", {kWorld + "pp=2", "roles.teacher.world.tp=2"}}),
    [](const auto& info) { return info.param.name; });

// The comparison can fail.
TEST(CrossTokenizerRunDetects, AnotherTemperature) {
  TemporaryFolder folder;
  const nlohmann::json want = golden("uld");
  const fs::path run =
      run_recipe_text(folder.path(), want.at("recipe"), {"distill.temperature=0.801"});
  ASSERT_FALSE(HasFailure());
  const double loss = want.at("loss").at(0).get<double>();
  EXPECT_GT(std::abs(column(run, "loss").at(0) - loss), 5e-5 * loss);
}

TEST(CrossTokenizerOptions, NormalizedGroupsWeighNoEarlierTokens) {
  TemporaryFolder folder;
  const nlohmann::json want = golden("uld");
  const fs::path run =
      run_recipe_text(folder.path(), want.at("recipe"), {"distill.uld_normalize=true"});
  ASSERT_FALSE(HasFailure());
  // Groups of several tokens are mostly a difference of two products until then.
  EXPECT_LT(column(run, "kd_loss").at(0), 0.9 * want.at("kd_loss").at(0).get<double>());
  EXPECT_EQ(column(run, "one_to_one_groups").at(0), want.at("one_to_one_groups").at(0));
}

// There is nothing to ask the teacher about then, and no vocabulary of its either.
TEST(CrossTokenizerOptions, RowsWithoutAGroupAreALossOfNothing) {
  TemporaryFolder folder;
  std::ofstream(folder / "rows.jsonl") << R"({"prompt": "The", "completion": ""})"
                                       << "\n";
  const fs::path run =
      run_recipe_text(folder.path(), golden("gold").at("recipe"),
                      {"data.train=[{path: " + (folder / "rows.jsonl").string() + "}]",
                       "train.max_steps=2", "train.per_device_train_batch_size=1"});
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(column(run, "loss"), std::vector<double>(2, 0.0));
}

// A golden model whose chat template prints roles between these.
std::string with_template(const TemporaryFolder& folder, const std::string& model,
                          const std::string& before, const std::string& behind) {
  const fs::path copy = folder / model;
  fs::copy(goldens() / model, copy, fs::copy_options::recursive);
  std::ofstream(copy / "chat_template.jinja")
      << "{% for message in messages %}" << before << "{{ message.role }}" << behind
      << "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}"
         "{% endgeneration %}{% else %}{{ message.content }}{% endif %}\n{% endfor %}";
  return copy.string();
}

// The numbers of a step on two conversations.
std::pair<double, double> taught_by_template(const fs::path& folder, const Settings& models,
                                             const std::string& settings) {
  fs::create_directories(folder);
  Settings all = models;
  all.insert(all.end(), {settings, "train.max_steps=1", "train.per_device_train_batch_size=2"});
  const fs::path run = run_recipe_text(folder, golden("uld").at("recipe"), all);
  return {column(run, "kd_loss").at(0), column(run, "aligned_tokens").at(0)};
}

TEST(CrossTokenizerOptions, TheTeacherReadsItsOwnTemplateOrTheStudents) {
  TemporaryFolder folder;
  std::ofstream(folder / "rows.jsonl")
      << R"({"messages": [{"role": "user", "content": "Near quickly answers?"},
             {"role": "assistant", "content": "Small green 学生 river 🙂."},
             {"role": "user", "content": "Never?"},
             {"role": "assistant", "content": "Token 12 walks."}]})"
      << "\n";
  std::string rows = read_file(folder / "rows.jsonl");
  std::erase(rows, '\n');
  std::ofstream(folder / "rows.jsonl") << rows << "\n" << rows << "\n";
  const Settings models{
      "roles.student.model=" + with_template(folder, "cross_student", "<", "> "),
      "roles.teacher.model=" + with_template(folder, "cross_teacher", "[", "]\n\n"),
      "data.train=[{path: " + (folder / "rows.jsonl").string() + "}]"};

  const auto own = taught_by_template(folder / "own", models, "distill.teacher_template=own");
  const auto students =
      taught_by_template(folder / "student", models, "distill.teacher_template=student");
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(std::abs(own.first - students.first), 1e-4) << "the teacher read the same prompt";
  EXPECT_GT(own.second, 0.8);
  EXPECT_EQ(own.second, students.second) << "the answers are the same bytes";

  // The student's template reads the same, whosever it is.
  fs::copy_file(folder / "cross_student" / "chat_template.jinja",
                folder / "cross_teacher" / "chat_template.jinja",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(taught_by_template(folder / "alike", models, "distill.teacher_template=own").first,
            own.first);
}

TEST(CrossTokenizerResume, HasTheSameBits) {
  constexpr int64_t kSteps = 20;
  const LaunchIn launch = [](const TemporaryFolder&, const fs::path& folder) {
    const fs::path recipe = write_recipe_text(folder, golden("uld_mixed").at("recipe"));
    return Settings{"launch", recipe.string(), "train.max_steps=" + std::to_string(kSteps),
                    "train.save_steps=3"};
  };
  expect_same_after_kills({.name = "cross_tokenizer", .steps = kSteps, .launch = launch});
}

// ---- what is refused

struct Refusal {
  std::string name, golden;
  Settings settings;  // $FOLDER stands for the test's
  std::vector<std::string> messages;
  std::string row;  // stands before the golden rows
};

// Letters and marks apart, which NFC writes as one character.
constexpr const char* kApart = R"({"prompt": "The", "completion": " cafe\u0301 house"})";

std::string long_row() {
  std::string text;
  for (int64_t i = 0; i < 200; ++i)
    text += " never";
  return R"({"prompt": "The", "completion": ")" + text + R"("})";
}

// The golden rows with another one before them; a teacher that reads texts in NFC.
void write_inputs(const TemporaryFolder& folder, const std::string& row) {
  std::ofstream(folder / "rows.jsonl") << row << "\n" << read_file(goldens() / "cross_rows.jsonl");
  fs::copy(goldens() / "cross_teacher", folder / "nfc", fs::copy_options::recursive);
  const fs::path path = folder / "nfc" / "tokenizer.json";
  std::string text = read_file(path);
  const std::string none = R"("normalizer":null)";
  const size_t at = text.find(none);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, none.size(), R"("normalizer":{"type":"NFC"})");
  std::ofstream(path) << text;
}

std::vector<Refusal> table() {
  const std::string with_row = "data.train=[{path: $FOLDER/rows.jsonl}]";
  return {
      // Keys that contradict each other.
      {"uld_of_draws",
       "uld",
       {"distill.payload=sampled"},
       {"payload sampled has no distribution to sort"},
       ""},
      {"gold_of_topk",
       "gold",
       {"distill.payload=topk"},
       {"payload topk leaves most tokens that both know unsaid"},
       ""},
      {"spans_without_policy_gradient",
       "uld",
       {"distill.cross_tokenizer=spans"},
       {"cross_tokenizer: spans is a policy gradient on the student's own draws"},
       ""},
      {"two_teachers",
       "uld",
       {"roles.second={model: $FOLDER/nfc, world: {threads: 1}}",
        "distill.teachers=[{role: teacher, weight: 0.5}, {role: second, weight: 0.5}]"},
       {"cross_tokenizer: uld works with one teacher for all samples"},
       ""},
      {"a_cache",
       "uld",
       {"distill.teachers=[{cache: $FOLDER/cache}]"},
       {"no cache holds what a teacher says of its own tokens"},
       ""},
      {"tokens_kept",
       "uld",
       {"data.tokenized_cache=$FOLDER/tokens"},
       {"data.tokenized_cache", "rows as the teacher's tokenizer reads them"},
       ""},
      {"one_weight_of_gold",
       "gold",
       {"distill.gold={matched_weight: 0.5}"},
       {"write matched_weight and unmatched_weight, or neither"},
       ""},
      {"weights_without_gold",
       "uld",
       {"distill.gold={beta: 0.3}"},
       {"gold has no effect without cross_tokenizer: gold"},
       ""},
      {"a_divergence",
       "uld",
       {"distill.loss_type=reverse_kl"},
       {"loss_type has no effect with cross_tokenizer: uld"},
       ""},
      {"none",
       "uld",
       {"distill.cross_tokenizer=none"},
       {"the student's tokenizer (a teacher may have another one: distill.cross_tokenizer)"},
       ""},

      // Rows.
      {"other_bytes",
       "uld",
       {with_row, "roles.teacher.model=$FOLDER/nfc"},
       {"rows.jsonl:1: ", "they differ at offset 4 of the answer"},
       kApart},
      {"long_for_the_teacher",
       "uld",
       {with_row},
       {"rows.jsonl:1: ", " tokens for the teacher, its context is 128"},
       long_row()},
      {"ids",
       "uld",
       {with_row},
       {"rows.jsonl:1: ", "input_ids are the student's"},
       R"({"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]})"},
  };
}

class CrossTokenizerInput : public testing::TestWithParam<Refusal> {};

TEST_P(CrossTokenizerInput, IsRefused) {
  const Refusal& refusal = GetParam();
  TemporaryFolder folder;
  const fs::path recipe = write_recipe_text(folder.path(), golden(refusal.golden).at("recipe"));
  ASSERT_NO_FATAL_FAILURE(write_inputs(folder, refusal.row));
  Settings arguments{"launch", recipe.string()};
  for (std::string setting : refusal.settings) {
    const std::string place = "$FOLDER";
    if (const size_t at = setting.find(place); at != std::string::npos)
      setting.replace(at, place.size(), folder.path().string());
    arguments.push_back(setting);
  }

  const CommandResult result = retort(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  for (const std::string& message : refusal.messages)
    EXPECT_NE(result.output.find(message), std::string::npos) << message << "\n" << result.output;
}

INSTANTIATE_TEST_SUITE_P(Table, CrossTokenizerInput, testing::ValuesIn(table()),
                         [](const auto& info) { return info.param.name; });

// ---- spans

OnPolicyRecipe sampled_tokens(const fs::path& data, const std::string& student,
                              const std::string& teacher) {
  return {.recipe = "on_policy_distill",
          .data = data,
          .student_model = student,
          .generator_model = student,
          .teacher = teacher,
          .rows = 4,
          .block = {{"teachers", "[{role: teacher}]"},
                    {"payload", "target_logps"},
                    {"loss_type", "reverse_kl"},
                    {"use_policy_gradient", "true"}},
          .generation = {{"max_new_tokens", "10"}, {"save_samples", "true"}},
          .data_extra = "  packing: false\n"};
}

fs::path launched(const fs::path& folder, const OnPolicyRecipe& recipe,
                  const Settings& settings = {}) {
  Settings arguments{"launch", write_on_policy(folder, recipe).string()};
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  const CommandResult result = retort(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return folder / "run";
}

// A model whose tokens are letters: whatever it draws is what a tokenizer makes of that text. Its
// head has more `rows` than there are tokens.
std::string letters_model(const TemporaryFolder& folder, const std::string& arch,
                          const std::string& seed, const std::string& rows) {
  const fs::path model = folder / arch;
  const fs::path tokenizer = goldens() / "cross_letters";
  const CommandResult result = retort({"model",
                                       "init",
                                       "--arch",
                                       arch,
                                       "--tokenizer",
                                       tokenizer.string(),
                                       "--output",
                                       model.string(),
                                       "--hidden-size",
                                       "16",
                                       "--num-hidden-layers",
                                       "2",
                                       "--num-attention-heads",
                                       "2",
                                       "--head-dim",
                                       "8",
                                       "--max-position-embeddings",
                                       "128",
                                       "--initializer-range",
                                       "0.25",
                                       "--seed",
                                       seed,
                                       "--vocab-size",
                                       rows});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return model.string();
}

// Some answers end by themselves, so that the signs by which they end are compared too.
void expect_both_ends(const fs::path& run) {
  size_t whole = 0, cut = 0;
  for (const auto& [key, sample] : read_samples(run))
    ++(sample.at("token_ids").size() < 10 ? whole : cut);
  EXPECT_GT(whole, 0u);
  EXPECT_GT(cut, 0u);
}

TEST(Spans, OfOneTokenizerAreItsTokens) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe =
      sampled_tokens(write_prompts(folder), letters_model(folder, "qwen3", "1", "48"),
                     letters_model(folder, "llama", "2", "64"));
  recipe.steps = 6;
  const fs::path tokens = launched(folder / "tokens", recipe);
  recipe.block["cross_tokenizer"] = "spans";
  const fs::path spans = launched(folder / "spans", recipe);
  ASSERT_FALSE(HasFailure());

  EXPECT_TRUE(read_file(spans / "final/model.safetensors") ==
              read_file(tokens / "final/model.safetensors"));
  EXPECT_EQ(read_samples(spans), read_samples(tokens));
  for (const char* key : {"reverse_kl", "kd_loss", "loss", "grad_norm", "entropy"}) {
    const std::vector<double> values = column(tokens, key);
    EXPECT_EQ(values.size(), 6u) << key;
    EXPECT_EQ(column(spans, key), values) << key;
  }
  EXPECT_EQ(column(spans, "aligned_tokens"), std::vector<double>(6, 1.0));
  expect_both_ends(spans);
}

// A student that was taught nothing draws bytes that are no text, which no teacher is asked about.
TEST(Spans, OfAnotherTokenizerTrain) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = sampled_tokens(goldens() / "cross_rows.jsonl", kStudent, "cross_teacher");
  recipe.block["cross_tokenizer"] = "spans";
  const fs::path run = launched(folder / "run", recipe, {"data.max_length=96"});
  ASSERT_FALSE(HasFailure());

  const std::vector<double> estimates = column(run, "reverse_kl");
  ASSERT_EQ(estimates.size(), 4u);
  for (const double estimate : estimates)
    EXPECT_TRUE(std::isfinite(estimate));
  for (const double share : column(run, "aligned_tokens")) {
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
  }
  EXPECT_TRUE(fs::exists(run / "final/model.safetensors"));
}

}  // namespace
}  // namespace retort::test
