// Recipes that meet: what one run leaves is where the next one begins, or what it is judged by.
// Each test is a chain of whole runs, and asks of the last what only holds if they look at the same
// tokens, weights and probabilities.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

// ---- a reward model of conversations judges what a student of conversations says

// ChatML's kind: something stands behind the end token (<eos>, 63): here w61, there a line break.
constexpr const char* kBehindTheEnd =
    "{% for m in messages %}w60 {{ m.content }} <eos> w61 {% endfor %}"
    "{% if add_generation_prompt %}w60 {% endif %}";

std::string said_by(const std::string& role, int64_t from, int64_t step) {
  const std::string words = "w" + std::to_string(from) + " w" + std::to_string(from + step);
  return R"({"role": ")" + role + R"(", "content": ")" + words + R"("})";
}

// Pairs of which the answer of small numbers is better; both answers as conversations; prompts.
void write_conversations(const TemporaryFolder& folder) {
  std::ofstream pairs(folder / "pairs.jsonl");
  std::ofstream chats(folder / "chats.jsonl");
  std::ofstream prompts(folder / "prompts.jsonl");
  for (int64_t i = 0; i < 24; ++i) {
    const std::string prompt = said_by("user", 10 + i % 12, 3);
    const std::string good = said_by("assistant", i % 5, 1 + i % 3);
    const std::string bad = said_by("assistant", 40 + i % 7, 2 + i % 4);
    pairs << R"({"prompt": [)" << prompt << R"(], "chosen": [)" << good << R"(], "rejected": [)"
          << bad << "]}\n";
    for (const std::string& answer : {good, bad})
      chats << R"({"messages": [)" << prompt << ", " << answer << "]}\n";
    if (i < 12)
      prompts << R"({"prompt": [)" << prompt << R"(], "answer": "w1"})"
              << "\n";
  }
}

// A run of `recipe` in folder/<recipe>, which must end well; its last checkpoint.
fs::path train(const TemporaryFolder& folder, const std::string& recipe, const fs::path& model,
               const std::string& rows, const std::string& block) {
  std::ofstream(folder / (recipe + ".yaml"))
      << "recipe: " << recipe << "\noutput_dir: " << (folder / recipe).string()
      << "\nroles: {student: {model: " << model.string() << ", world: {threads: 1}}}\n"
      << "data: {train: [{path: " << (folder / rows).string() << "}], max_length: 64}\n"
      << "train: {max_steps: 60, per_device_train_batch_size: 8, learning_rate: 1.0e-2, "
         "save_steps: 0}\n"
      << block;
  const auto result = retort({"launch", (folder / (recipe + ".yaml")).string()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return folder / recipe / "final";
}

// Of all pairs of a good and a bad answer that were drawn, the share that is told apart.
double told_apart(const fs::path& run) {
  std::vector<double> good;
  std::vector<double> bad;
  for (const auto& [key, sample] : read_samples(run)) {
    const auto ids = sample.at("token_ids").get<std::vector<int32_t>>();
    if (ids.size() != 3 || ids.back() != 63) continue;  // not two words and the end
    const double taste = sample.at("rewards").at("taste");
    if (ids[0] < 5 && ids[1] < 10) good.push_back(taste);
    if (ids[0] >= 40 && ids[0] < 47 && ids[1] >= 40 && ids[1] < 54) bad.push_back(taste);
  }
  EXPECT_GE(good.size(), 8u) << "the student does not say what it was taught";
  EXPECT_GE(bad.size(), 8u) << "the student does not say what it was taught";

  double right = 0;
  for (const double better : good)
    for (const double worse : bad)
      right += better > worse;
  return right / (static_cast<double>(good.size()) * static_cast<double>(bad.size()));
}

TEST(RewardModelOfMessages, JudgesDrawnAnswersAsItsPairs) {
  TemporaryFolder folder;
  const fs::path chat = folder / "chat";
  fs::copy(goldens() / "qwen3", chat, fs::copy_options::recursive);
  std::ofstream(chat / "chat_template.jinja") << kBehindTheEnd;
  write_conversations(folder);
  const fs::path judge =
      train(folder, "reward_model", chat, "pairs.jsonl", "reward_model: {num_labels: 1}\n");
  const fs::path student = train(folder, "sft", chat, "chats.jsonl", "");
  ASSERT_FALSE(HasFailure());
  ASSERT_EQ(column(folder / "reward_model", "accuracy").back(), 1.0);

  OnPolicyRecipe recipe{.steps = 6};
  recipe.data = folder / "prompts.jsonl";
  recipe.student_model = recipe.generator_model = student.string();
  recipe.rewards = "[{type: model, role: judge, label: 0, name: taste}]";
  recipe.generation["save_samples"] = "true";
  recipe.generation["temperature"] = "0.5";  // mostly what it was taught
  const auto result = retort({"launch", write_on_policy(folder / "grpo", recipe).string(),
                              "roles.judge={model: " + judge.string() + ", world: {threads: 1}}"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(told_apart(folder / "grpo/run"), 1.0);
}

// ---- the same conversations, once as messages and once as prompt and answers

struct Written {
  std::string name, tokenizer, chat_template;
};

constexpr const char* kPlain =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}";
// Llama 2's: a space stands before the answer.
constexpr const char* kInstruct =
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";

fs::path fresh_model(const TemporaryFolder& folder, const Written& written) {
  const fs::path model = folder / "model";
  const auto result =
      retort({"model", "init", "--arch", "llama", "--tokenizer",
              (source_folder() / "tests/text/goldens" / written.tokenizer).string(), "--output",
              model.string(), "--hidden-size", "16", "--num-hidden-layers", "2",
              "--num-attention-heads", "2", "--head-dim", "8", "--max-position-embeddings", "256"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::ofstream(model / "chat_template.jinja") << written.chat_template;
  return model;
}

// Conversations as `messages`, as `prompt` and `completion`, and as pairs of answers.
void write_three_ways(const TemporaryFolder& folder) {
  std::ofstream messages(folder / "messages.jsonl");
  std::ofstream completions(folder / "completions.jsonl");
  std::ofstream pairs(folder / "pairs.jsonl");
  const std::vector<std::pair<std::string, std::string>> said{
      {"What is 2 + 2?", "It is 4."},
      {"Who has apples?", "Tom has 4 apples."},
      {"Please write.", "The student learns from the teacher."},
      {"And now?", "12"}};
  const auto message = [](const std::string& role, const std::string& text) {
    return R"({"role": ")" + role + R"(", "content": ")" + text + R"("})";
  };
  for (const auto& [question, text] : said) {
    const std::string prompt = message("user", question);
    const std::string answer = message("assistant", text);
    messages << R"({"messages": [)" << prompt << ", " << answer << "]}\n";
    completions << R"({"prompt": [)" << prompt << R"(], "completion": [)" << answer << "]}\n";
    pairs << R"({"prompt": [)" << prompt << R"(], "chosen": [)" << answer << R"(], "rejected": [)"
          << message("assistant", "No.") << "]}\n";
  }
}

std::string three_ways_recipe(const TemporaryFolder& folder, const std::string& recipe,
                              const fs::path& model, const std::string& rows, int64_t steps,
                              const std::string& more) {
  return "recipe: " + recipe + "\noutput_dir: $RUN\nroles: {student: {model: " + model.string() +
         ", world: {threads: 1}}}\ndata:\n  train: [{path: " + (folder / rows).string() +
         "}]\n  max_length: 128\ntrain: {max_steps: " + std::to_string(steps) +
         ", per_device_train_batch_size: 4, learning_rate: 1.0e-2, save_steps: 0}\n" + more;
}

class SameConversations : public testing::TestWithParam<Written> {};

// A model that learned its answers well: had dpo other tokens, they would be unlikely.
TEST_P(SameConversations, HaveTheSameProbabilitiesInSftAndDpo) {
  TemporaryFolder folder;
  write_three_ways(folder);
  const fs::path model = fresh_model(folder, GetParam());
  const fs::path trained = run_recipe_text(
      folder / "sft", three_ways_recipe(folder, "sft", model, "messages.jsonl", 60, ""));
  ASSERT_FALSE(HasFailure());

  const auto loss_of = [&](const char* rows) {
    const auto result = retort(
        {"eval", "--model", (trained / "final").string(), "--data", (folder / rows).string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const size_t begin = result.output.rfind("{\"");
    EXPECT_NE(begin, std::string::npos) << result.output;
    const std::string line = result.output.substr(begin, result.output.find('\n', begin) - begin);
    return nlohmann::json::parse(line).at("loss").get<double>();
  };
  const double learned = loss_of("messages.jsonl");
  EXPECT_LT(learned, 2.0) << "the model learned little: it began with about 6";
  EXPECT_NEAR(loss_of("completions.jsonl"), learned, 1e-5);

  // The chosen answers' mean negative log-probability of a token, before the first step.
  const fs::path run = run_recipe_text(
      folder / "dpo", three_ways_recipe(folder, "dpo", trained / "final", "pairs.jsonl", 1,
                                        "dpo: {loss_type: [sft]}\n"));
  ASSERT_FALSE(HasFailure());
  EXPECT_NEAR(column(run, "nll_loss").at(0), learned, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, SameConversations,
                         testing::Values(Written{"byte_level", "qwen", kPlain},
                                         Written{"metaspace", "llama2", kPlain},
                                         Written{"metaspace_instruct", "llama2", kInstruct}),
                         [](const auto& info) { return info.param.name; });

// ---- an adapter that sft trained is where dpo and grpo begin, and what they are compared with

TEST(AdapterOfSft, IsTheReferenceOfDpoAndGrpo) {
  TemporaryFolder folder;
  const auto recipe = [&](const std::string& kind, const std::string& rows, const std::string& lora,
                          const std::string& more) {
    return "recipe: " + kind + "\noutput_dir: $RUN\nseed: 3\nroles:\n  student:\n" +
           "    model: $GOLDENS/qwen3\n    world: {threads: 1}\n" +
           "    lora: {r: 4, lora_alpha: 8" + lora + "}\ndata:\n  train: [{path: $GOLDENS/" + rows +
           "}]\n  max_length: 64\ntrain:\n  max_steps: 4\n" +
           "  per_device_train_batch_size: 4\n  learning_rate: 1.0e-2\n  save_steps: 0\n" + more;
  };
  const fs::path sft = run_recipe_text(folder / "sft", recipe("sft", "rows.jsonl", "", ""));
  ASSERT_FALSE(HasFailure());
  const std::string adapter = ", adapter: " + (sft / "final").string();

  const fs::path dpo = run_recipe_text(
      folder / "dpo",
      recipe("dpo", "pairs.jsonl", adapter, "dpo: {beta: 0.1, reference: student}\n"));
  ASSERT_FALSE(HasFailure());
  EXPECT_NEAR(column(dpo, "loss").front(), std::log(2.0), 1e-6);
  EXPECT_NEAR(column(dpo, "rewards/margins").front(), 0, 1e-6);
  EXPECT_GT(std::abs(column(dpo, "rewards/margins").back()), 1e-3) << "hardly moved";

  OnPolicyRecipe drawn{.data = write_prompts(folder)};
  drawn.block = {{"beta", "0.05"}, {"reference", "student"}};
  const fs::path grpo = run_adapter(folder / "grpo", drawn,
                                    {"roles.student.lora.lora_alpha=8",
                                     "roles.student.lora.adapter=" + (sft / "final").string()});
  ASSERT_FALSE(HasFailure());
  EXPECT_NEAR(column(grpo, "kl").front(), 0, 1e-6);
  EXPECT_GT(column(grpo, "kl").back(), 1e-4) << "hardly moved";
}

// ---- a correction for the generator's probabilities, and several steps on one rollout

// Both keep their own work: the weight is that of the old policy to the generator, the clip that of
// the new one to the old. By TRL 1.16's whole GRPOTrainer, given the same samples.
TEST(CorrectionAndMiniBatches, ClipAndWeighAsTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("trainers").at("grpo_correction");
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"));
  ASSERT_FALSE(HasFailure());
  expect_recorded_samples(run, golden);
  ASSERT_FALSE(HasFailure()) << "other samples: the rest cannot agree";

  expect_columns(run, golden,
                 {"loss", "grad_norm", "clip_ratio/low_mean", "clip_ratio/high_mean",
                  "clip_ratio/region_mean"},
                 1e-6);
  const std::vector<double> clipped = column(run, "clip_ratio/region_mean");
  EXPECT_EQ(clipped.front(), 0);
  EXPECT_GT(clipped.back(), 0.05) << "or no clip would do";
}

}  // namespace
}  // namespace retort::test
