// Episodes with the calculator of share/environments whose model says what the rows of
// `retort data arithmetic --tools` have it say: what is learned from those is what episodes show.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "environments/make_environment.h"
#include "models/generation/completion_spans.h"
#include "models/text/named_templates.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/product_problems.h"
#include "recipes/data/sample.h"
#include "roles/episodes/episode.h"
#include "tests/environments/episodes.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace retort::environments {
namespace {
using nlohmann::ordered_json;
using Next = roles::Episode::Next;
using Turns = std::vector<std::vector<int32_t>>;  // ids, with the token that ends a turn

constexpr size_t kRows = 6;

// The template of the recipes.
std::string own_template() {
  return (test::source_folder() / "recipes/configs/tools.jinja").string();
}

class CalculatorEpisodes : public testing::Test {
 protected:
  CalculatorEpisodes() {
    data::write_product_problems(folder_ / "calls.jsonl", 0, kRows, 3);
    data::write_product_problems(folder_ / "prompts.jsonl", 0, kRows, 3,
                                 {.rows = data::ProductRows::kPrompts});
    calls_ = lines_of("calls.jsonl");
    prompts_ = lines_of("prompts.jsonl");
    models::train_tokenizer(calls_, {.vocab_size = 300}, folder_ / "model");

    EnvironmentOptions options;
    options.command = {
        "python3", (test::source_folder() / "python/retort_env.py").string(),
        (test::source_folder() / "share/environments/calculator.py").string() + ":Calculator"};
    options.start_timeout = std::chrono::seconds(120) * test::kSlowness;
    environment_ = make_environment("tools/0", options, std::chrono::seconds(60));
    environment_->info();
  }

  std::vector<std::string> lines_of(const std::string& name) const {
    const data::JsonlFile file(folder_ / name);
    std::vector<std::string> lines;
    for (int64_t i = 0; i < file.size(); ++i)
      lines.emplace_back(file.line(i));
    return lines;
  }

  roles::TurnWords words_of(const std::string& chat_template) const {
    const auto tokenizer = models::Tokenizer::load(folder_ / "model");
    const auto chat =
        models::ChatTemplate::load(folder_ / "model", models::find_template(chat_template));
    return {chat, tokenizer, models::TurnSuffix(chat, tokenizer)};
  }

  // The whole episode of a row whose model says these turns.
  models::Completion play(const roles::TurnWords& words, const std::string& row,
                          const Turns& turns) {
    const roles::EpisodeOptions options;
    const roles::Episode::Setting setting{.words = &words,
                                          .options = &options,
                                          .draw = {.max_new_tokens = 1000},
                                          .environment = "tools/0"};
    roles::Episode episode(setting, {.seed = 5, .row = row});
    size_t said = 0;
    while (episode.next() != Next::kEnd) {
      if (episode.next() == Next::kOpen)
        episode.opened(environment_->open(episode.to_open(1)).get(test::patience()));
      else if (episode.next() == Next::kDraw)
        episode.drawn({.token_ids = turns.at(said++), .finish_reason = models::FinishReason::kEos});
      else if (episode.next() == Next::kStep)
        episode.answered(environment_->step(episode.to_step(1)).get(test::patience()));
      else
        episode.closed(environment_->close({.episode = 1}).get(test::patience()));
    }
    EXPECT_EQ(said, turns.size()) << "turns that nobody asked for";
    return episode.take();
  }

  test::TemporaryFolder folder_;
  std::vector<std::string> calls_, prompts_;
  std::unique_ptr<roles::Environment> environment_;
};

// What a row has the model say. A template may mark white space behind the token that ends a turn;
// nobody draws that.
Turns turns_of(const data::Sample& sample, int32_t end_of_turn) {
  Turns turns;
  for (size_t i = 1; i < sample.input_ids.size(); ++i) {
    if (!sample.is_target[i]) continue;
    if (!sample.is_target[i - 1]) turns.emplace_back();
    const bool ended = !turns.back().empty() && turns.back().back() == end_of_turn;
    if (!ended) turns.back().push_back(sample.input_ids[i]);
  }
  return turns;
}

double reward_of(const models::Completion& episode) {
  return ordered_json::parse(episode.episode).at("reward").get<double>();
}

TEST_F(CalculatorEpisodes, HaveTheIdsOfTheRowsThatWereLearned) {
  for (const std::string& name : {own_template(), std::string("qwen3_training")}) {
    SCOPED_TRACE(name);
    const roles::TurnWords words = words_of(name);
    for (size_t i = 0; i < kRows; ++i) {
      const data::Sample row = data::make_sample(calls_.at(i), "calls", {}, words.tokenizer,
                                                 words.chat, {.max_length = 4096});
      const Turns turns = turns_of(row, words.suffix.end_of_turn());
      ASSERT_EQ(turns.size(), 2u);
      const models::Completion episode = play(words, prompts_.at(i), turns);

      // All ids, but the line end behind the last turn. Of these the model's are those that were
      // learned.
      std::vector<int32_t> ids = row.input_ids;
      std::vector<uint8_t> learned = row.is_target;
      ids.resize(episode.token_ids.size());
      EXPECT_EQ(words.tokenizer.decode(episode.token_ids, false),
                words.tokenizer.decode(ids, false));
      EXPECT_EQ(episode.token_ids, ids);
      EXPECT_LE(row.input_ids.size(), ids.size() + 1);
      if (name == own_template()) {
        learned.resize(ids.size());
        EXPECT_EQ(models::model_tokens(episode), learned);
      }
      EXPECT_EQ(reward_of(episode), 1.0);
      EXPECT_EQ(ordered_json::parse(episode.episode).at("failed_calls"), 0);
    }
  }
}

TEST_F(CalculatorEpisodes, AreScoredByTheLastResult) {
  const roles::TurnWords words = words_of(own_template());
  const auto turn = [&](const std::string& text) {
    return words.tokenizer.encode(text + "<|im_end|>", /*add_special_tokens=*/false);
  };
  const auto call = [&](const std::string& expression) {
    return turn("<tool_call>\n{\"name\": \"calculate\", \"arguments\": {\"expression\": \"" +
                expression + "\"}}\n</tool_call>");
  };
  const auto reward = [&](const Turns& turns) {
    return reward_of(play(words, prompts_.at(0), turns));
  };
  const data::ProductProblem problem = data::product_problem(0, 3, 4);
  EXPECT_EQ(reward({call(problem.expression), turn("I do not know.")}), 1.0);
  EXPECT_EQ(reward({call("1 + 1"), call(problem.expression), turn("Done.")}), 1.0);
  EXPECT_EQ(reward({call(problem.expression), call("1 + 1"), turn("Done.")}), 0.0);
  EXPECT_EQ(reward({call("1 +"), turn(problem.completion)}), 0.0);
  EXPECT_EQ(reward({turn(problem.completion)}), 0.0);
}

}  // namespace
}  // namespace retort::environments
