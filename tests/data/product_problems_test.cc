#include "recipes/data/product_problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "models/text/named_templates.h"
#include "recipes/data/answer.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {

using nlohmann::ordered_json;

// The factors of "4821 * 317".
std::pair<std::string, std::string> factors_of(const std::string& expression) {
  std::istringstream words(expression);
  std::string a, times, b, more;
  words >> a >> times >> b;
  EXPECT_EQ(times, "*") << expression;
  EXPECT_FALSE(words >> more) << expression;
  return {a, b};
}

TEST(ProductProblems, AreRightAndDistinct) {
  for (const int digits : {kMinProductDigits, 4, kMaxProductDigits}) {
    SCOPED_TRACE(digits);
    std::set<std::string> prompts;
    int longer_first = 0;
    for (int64_t i = 0; i < 1000; ++i) {
      const ProductProblem problem = product_problem(i * 6, 42, digits);
      const auto [a, b] = factors_of(problem.expression);
      EXPECT_EQ(std::to_string(std::stoll(a) * std::stoll(b)), problem.answer);

      // One has all the digits, the other one fewer; the prompt has them in the same order.
      longer_first += a.size() > b.size();
      EXPECT_EQ(std::max(a.size(), b.size()), static_cast<size_t>(digits));
      EXPECT_EQ(std::min(a.size(), b.size()), static_cast<size_t>(digits - 1));
      EXPECT_TRUE(a[0] != '0' && b[0] != '0') << problem.expression;
      const size_t at = problem.prompt.find(" " + a + " ");
      ASSERT_NE(at, std::string::npos) << problem.prompt;
      EXPECT_NE(problem.prompt.find(" " + b, at + a.size()), std::string::npos) << problem.prompt;
      EXPECT_EQ(problem.prompt.find_first_of("{}"), std::string::npos) << problem.prompt;

      EXPECT_TRUE(prompts.insert(problem.prompt).second) << problem.prompt;
      EXPECT_TRUE(same_answer(problem.completion, problem.answer)) << problem.completion;
    }
    EXPECT_GT(longer_first, 300);
    EXPECT_LT(longer_first, 700);
  }
}

TEST(ProductProblems, TheLastIsAsDistinctAsTheFirst) {
  const int64_t size = num_product_problems(kMinProductDigits);
  EXPECT_EQ(size, 90 * 9 * 2 * 4) << "factors, their order, questions";
  std::set<std::string> prompts;
  for (int64_t i = 0; i < size; ++i)
    prompts.insert(product_problem(i, 3, kMinProductDigits).prompt);
  EXPECT_EQ(static_cast<int64_t>(prompts.size()), size);
  EXPECT_GT(num_product_problems(kMaxProductDigits), num_product_problems(4));
}

// A file of these rows.
class ProductRowsTest : public testing::Test {
 protected:
  std::string content(int64_t first, uint64_t seed, const ProductOptions& options = {}) const {
    write_product_problems(folder_ / "f.jsonl", first, 20, seed, options);
    return read_file(folder_ / "f.jsonl");
  }
  JsonlFile rows(const ProductOptions& options = {}) const {
    content(0, 1, options);
    return JsonlFile(folder_ / "f.jsonl");
  }

  test::TemporaryFolder folder_;
};

TEST_F(ProductRowsTest, TheSameArgumentsGiveTheSameBytes) {
  for (const ProductRows kind : {ProductRows::kCalls, ProductRows::kPrompts}) {
    const std::string once = content(0, 1, {.rows = kind});
    EXPECT_EQ(content(0, 1, {.rows = kind}), once);
    EXPECT_NE(content(0, 2, {.rows = kind}), once);
    EXPECT_NE(content(0, 1, {.rows = kind, .digits = 5}), once);

    // A row depends on its own number alone.
    const std::string later = content(5, 1, {.rows = kind});
    const size_t fifth = once.find(later.substr(0, later.find('\n') + 1));
    ASSERT_NE(fifth, std::string::npos);
    EXPECT_TRUE(later.starts_with(once.substr(fifth)));
  }
}

TEST_F(ProductRowsTest, AreConversationsAndTheirQuestions) {
  const JsonlFile calls = rows();
  std::vector<std::string> lines;
  for (int64_t i = 0; i < calls.size(); ++i)
    lines.emplace_back(calls.line(i));
  const JsonlFile prompts = rows({.rows = ProductRows::kPrompts});
  ASSERT_EQ(prompts.size(), 20);
  ASSERT_EQ(lines.size(), 20u);

  for (int64_t i = 0; i < 20; ++i) {
    const ProductProblem problem = product_problem(i, 1, 4);
    const auto row = ordered_json::parse(lines[static_cast<size_t>(i)]);
    const auto& messages = row.at("messages");
    ASSERT_EQ(messages.size(), 4u);
    EXPECT_EQ(messages[0], (ordered_json{{"role", "user"}, {"content", problem.prompt}}));
    const auto& function = messages[1].at("tool_calls").at(0).at("function");
    EXPECT_EQ(function.at("name"), "calculate");
    EXPECT_EQ(function.at("arguments").dump(), "{\"expression\":\"" + problem.expression + "\"}");
    EXPECT_EQ(messages[2],
              (ordered_json{{"role", "tool"}, {"name", "calculate"}, {"content", problem.answer}}));
    EXPECT_EQ(messages[3], (ordered_json{{"role", "assistant"}, {"content", problem.completion}}));
    EXPECT_EQ(row.at("tools"), ordered_json::array({ordered_json::parse(calculator_schema())}));
    EXPECT_EQ(row.at("answer"), problem.answer);

    const auto prompt = ordered_json::parse(prompts.line(i));
    EXPECT_EQ(prompt.at("messages"), ordered_json::array({messages[0]}));
    EXPECT_EQ(prompt.at("answer"), problem.answer);
    EXPECT_FALSE(prompt.contains("tools")) << "the environment brings them";
  }
}

TEST_F(ProductRowsTest, AShareOfTheRowsHasTheCall) {
  for (const int percent : {0, 1, 30, 99, 100}) {
    write_product_problems(folder_ / "f.jsonl", 500, 200, 1, {.calls_percent = percent});
    const JsonlFile file(folder_ / "f.jsonl");
    int64_t calls = 0;
    for (int64_t i = 0; i < file.size(); ++i) {
      const ProductProblem problem = product_problem(500 + i, 1, 4);
      const auto row = ordered_json::parse(file.line(i));
      const auto& messages = row.at("messages");
      calls += messages.size() == 4;

      // The others have the tool and the right answer, but do not ask for it.
      ASSERT_TRUE(messages.size() == 4 || messages.size() == 2);
      EXPECT_EQ(messages.front().at("content"), problem.prompt);
      EXPECT_EQ(messages.back().at("content"), problem.completion);
      EXPECT_EQ(row.at("tools").size(), 1u);
      EXPECT_EQ(row.at("answer"), problem.answer);
    }
    EXPECT_EQ(calls, 2 * percent) << "of each hundred rows";
  }

  const auto refusal = [&](const ProductOptions& options) {
    return test::message_of([&] { content(0, 1, options); });
  };
  EXPECT_NE(refusal({.calls_percent = 101}).find("expected 0 to 100"), std::string::npos);
  EXPECT_NE(refusal({.calls_percent = -1}).find("expected 0 to 100"), std::string::npos);
  const std::string of_prompts = refusal({.rows = ProductRows::kPrompts, .calls_percent = 30});
  EXPECT_NE(of_prompts.find("leave one of the two out"), std::string::npos) << of_prompts;
}

// A model's folder whose tokenizer knows the rows' words.
models::Tokenizer tokenizer_of(const JsonlFile& rows, const std::filesystem::path& folder) {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < rows.size(); ++i)
    texts.emplace_back(rows.line(i));
  models::train_tokenizer(texts, {.vocab_size = 300}, folder);
  return models::Tokenizer::load(folder);
}

// Each run of targets as text.
std::vector<std::string> learned_of(const Sample& sample, const models::Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> runs;
  for (size_t i = 0; i < sample.input_ids.size(); ++i) {
    if (!sample.is_target[i]) continue;
    if (!sample.is_target[i - 1]) runs.emplace_back();
    runs.back().push_back(sample.input_ids[i]);
  }
  std::vector<std::string> texts;
  for (const std::vector<int32_t>& ids : runs)
    texts.push_back(tokenizer.decode(ids, /*skip_special_tokens=*/false));
  return texts;
}

struct TemplateCase {
  std::string name;
  std::string before, after;  // what else it has an answer say
};

TEST_F(ProductRowsTest, OnlyCallsAndAnswersAreLearned) {
  const JsonlFile file = rows();
  const models::Tokenizer tokenizer = tokenizer_of(file, folder_ / "model");
  const std::string own = (test::source_folder() / "recipes/configs/tools.jinja").string();
  for (const TemplateCase& known :
       {TemplateCase{own, "", ""},
        TemplateCase{"qwen3_training", "<think>\n\n</think>\n\n", "\n"}}) {
    SCOPED_TRACE(known.name);
    const auto chat =
        models::ChatTemplate::load(folder_ / "model", models::find_template(known.name));
    for (int64_t i = 0; i < file.size(); ++i) {
      const ProductProblem problem = product_problem(i, 1, 4);
      const Sample sample =
          make_sample(file.line(i), "f:1", {}, tokenizer, chat, {.max_length = 4096});
      EXPECT_FALSE(sample.truncated);
      const std::string arguments = "{\"expression\": \"" + problem.expression + "\"}";
      const std::string call =
          "<tool_call>\n{\"name\": \"calculate\", \"arguments\": " + arguments + "}\n</tool_call>";
      const std::string end = "<|im_end|>" + known.after;
      EXPECT_EQ(learned_of(sample, tokenizer),
                (std::vector<std::string>{known.before + call + end,
                                          known.before + problem.completion + end}));

      // What is not learned is there to be read.
      const std::string all = tokenizer.decode(sample.input_ids, false);
      EXPECT_NE(all.find(problem.prompt), std::string::npos) << all;
      EXPECT_NE(all.find("<tool_response>\n" + problem.answer + "\n</tool_response>"),
                std::string::npos)
          << all;
      EXPECT_NE(all.find("Evaluates an arithmetic expression exactly"), std::string::npos) << all;
    }
  }
}

// Of a template without a place for calls an empty turn would be learned.
TEST_F(ProductRowsTest, ATemplateThatLeavesTheCallOutIsRefused) {
  const JsonlFile file = rows();
  const models::Tokenizer tokenizer = tokenizer_of(file, folder_ / "model");
  const auto chat = models::ChatTemplate::load(folder_ / "model");
  auto row = ordered_json::parse(file.line(0));
  const auto expect_refused = [&](const auto& make) {
    const std::string message = test::message_of(make);
    EXPECT_NE(message.find("leaves out the call of \"calculate\""), std::string::npos) << message;
  };
  for (const bool assistant_only : {true, false})
    expect_refused([&] {
      make_sample(row.dump(), "f:1", {}, tokenizer, chat,
                  {.max_length = 4096, .assistant_only_loss = assistant_only});
    });

  // As part of a prompt, too, and as an answer that is preferred.
  const ordered_json question = ordered_json::array({row["messages"][0]});
  const ordered_json call = ordered_json::array({row["messages"][1]});
  const ordered_json pair{{"prompt", question}, {"completion", call}};
  expect_refused([&] { make_sample(pair.dump(), "f:1", {}, tokenizer, chat, {}); });
  row["messages"].erase(3);
  expect_refused([&] { make_prompt(row.dump(), "f:1", {}, tokenizer, chat); });
}

// A template that lists the tools. An answer is its words with `calls` behind them.
models::ChatTemplate listing(const std::string& calls) {
  return models::ChatTemplate::from_source(
      "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}" +
          calls + "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
      "", "");
}

constexpr const char* kEachCall =
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}";

TEST_F(ProductRowsTest, AListOfToolsIsNoCall) {
  const JsonlFile file = rows();
  const models::Tokenizer tokenizer = tokenizer_of(file, folder_ / "model");
  auto row = ordered_json::parse(file.line(0));
  const auto make = [&](const std::string& calls, bool assistant_only = true) {
    return make_sample(row.dump(), "f:1", {}, tokenizer, listing(calls),
                       {.max_length = 4096, .assistant_only_loss = assistant_only});
  };
  const auto expect_refused = [&](const std::string& calls, bool assistant_only = true) {
    const std::string message = test::message_of([&] { make(calls, assistant_only); });
    EXPECT_NE(message.find("leaves out the call of \"calculate\""), std::string::npos) << message;
  };

  // The list holds the name of each call, whether the call is printed or not.
  for (const bool assistant_only : {true, false}) {
    expect_refused("", assistant_only);
    EXPECT_NO_THROW(make(kEachCall, assistant_only));
  }
  EXPECT_NE(learned_of(make(kEachCall), tokenizer).at(0).find("[calculate]"), std::string::npos);

  // One that takes no name but those that it knows has seen the call.
  EXPECT_NO_THROW(
      make("{% for c in m.tool_calls or [] %}{% if c.function.name != 'calculate' %}"
           "{{ raise_exception('unknown') }}{% endif %}[{{ c.function.name }}]"
           "{% endfor %}"));

  // Without a list the words of the template may have the name.
  row.erase("tools");
  row["messages"][2].erase("name");
  EXPECT_NO_THROW(make(kEachCall));
  expect_refused("You may calculate.");

  // Of several calls each has to be there.
  const ordered_json call = row["messages"][1]["tool_calls"][0];
  row["messages"][1]["tool_calls"].push_back(call);
  EXPECT_NO_THROW(make(kEachCall));
  expect_refused("{% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}]{% endif %}");
}

TEST_F(ProductRowsTest, PromptsBeginEpisodesAndHaveTheirAnswer) {
  const JsonlFile file = rows({.rows = ProductRows::kPrompts});
  const models::Tokenizer tokenizer = tokenizer_of(file, folder_ / "model");
  const auto chat = models::ChatTemplate::load(folder_ / "model");
  for (int64_t i = 0; i < file.size(); ++i) {
    const ProductProblem problem = product_problem(i, 1, 4);
    const PromptSample prompt =
        make_prompt(file.line(i), "f:1", {}, tokenizer, chat, /*for_episodes=*/true);
    EXPECT_EQ(prompt.reference, problem.answer);
    EXPECT_EQ(prompt.question, problem.prompt);
    EXPECT_EQ(ordered_json::parse(prompt.row).at("answer"), problem.answer)
        << "which the environment compares with";
  }
}

TEST_F(ProductRowsTest, RangesAreChecked) {
  const auto refusal = [&](int64_t first, int64_t count, int digits) {
    return test::message_of([&] {
      write_product_problems(folder_ / "none.jsonl", first, count, 1, {.digits = digits});
    });
  };
  EXPECT_NE(refusal(0, 1, 1).find("expected 2 to 9"), std::string::npos);
  EXPECT_NE(refusal(0, 1, 10).find("expected 2 to 9"), std::string::npos);
  const std::string beyond = refusal(6479, 2, 2);
  EXPECT_NE(beyond.find("there are 6480"), std::string::npos) << beyond;
  EXPECT_NE(refusal(-1, 1, 4), "");
  EXPECT_NE(refusal(0, -1, 4), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none.jsonl"));
  write_product_problems(folder_ / "last.jsonl", 6479, 1, 1, {.digits = 2});
  EXPECT_EQ(JsonlFile(folder_ / "last.jsonl").size(), 1);
}

}  // namespace
}  // namespace retort::data
