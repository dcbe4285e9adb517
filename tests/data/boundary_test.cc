// Prompt and completion are cut into tokens as one text, as TRL's trainers do, in every row that
// has both (make_boundary_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "recipes/data/preference_dataset.h"
#include "recipes/data/sample.h"
#include "recipes/data/unpaired.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

const Source kRows{.path = "f"};

struct Golden {
  Json row;
  Ids ids;
  size_t prompt_tokens = 0;
  bool prompt_differs = false;
  std::string tokenizer, chat;

  Ids prompt() const {
    return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens)};
  }
  Ids completion() const {
    return {ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens), ids.end()};
  }
};

class BoundaryTest : public testing::Test {
 protected:
  const models::Tokenizer& tokenizer(const std::string& name) {
    const auto folder = test::source_folder() / "tests/text/goldens" / name;
    return tokenizers_.try_emplace(name, models::Tokenizer::load(folder)).first->second;
  }
  models::ChatTemplate chat(const Golden& golden) {
    const models::Tokenizer& t = tokenizer(golden.tokenizer);
    const std::string source = golden.chat.empty() ? "{{ messages }}" : golden.chat;
    const std::string bos = t.bos_id() < 0 ? "" : t.id_to_token(t.bos_id());
    return models::ChatTemplate::from_source(source, bos, t.id_to_token(t.eos_id()));
  }
  static std::vector<Golden> goldens() {
    std::ifstream file(test::source_folder() / "tests/data/boundary_goldens.jsonl");
    std::vector<Golden> all;
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      all.push_back({.row = json["row"],
                     .ids = json["ids"].get<Ids>(),
                     .prompt_tokens = json["prompt_tokens"],
                     .prompt_differs = json["prompt_differs"],
                     .tokenizer = json["tokenizer"],
                     .chat = json["template"]});
    }
    return all;
  }

  std::map<std::string, models::Tokenizer> tokenizers_;
};

TEST_F(BoundaryTest, SamplesEqualTrl) {
  int differ = 0;
  for (const Golden& golden : goldens()) {
    const Sample sample = make_sample(golden.row.dump(), "f:1", kRows, tokenizer(golden.tokenizer),
                                      chat(golden), {.max_length = 1000});
    EXPECT_EQ(sample.input_ids, golden.ids) << golden.tokenizer << golden.row;
    std::vector<uint8_t> targets(golden.prompt_tokens, 0);
    targets.resize(golden.ids.size(), 1);
    targets[0] = 0;
    EXPECT_EQ(sample.is_target, targets) << golden.tokenizer << golden.row;
    EXPECT_EQ(sample.prompt_differs, golden.prompt_differs) << golden.tokenizer << golden.row;
    differ += golden.prompt_differs;
  }
  EXPECT_GT(differ, 10) << "or the common prefix is not seen";
}

TEST_F(BoundaryTest, JudgedCompletionsEqualTrl) {
  for (const Golden& golden : goldens()) {
    if (golden.prompt_tokens == 0) continue;
    Json row = golden.row;
    row["label"] = true;
    const UnpairedSample sample =
        make_unpaired(row.dump(), "f:1", kRows, tokenizer(golden.tokenizer), chat(golden), 1000);
    EXPECT_EQ(sample.prompt_ids, golden.prompt()) << golden.tokenizer << row;
    EXPECT_EQ(sample.completion_ids, golden.completion()) << golden.tokenizer << row;
    EXPECT_EQ(sample.prompt_differs, golden.prompt_differs) << golden.tokenizer << row;
  }
}

// The ids of each side are those of its whole text, whatever the other is; the prompt is what both
// share with the prompt alone.
TEST_F(BoundaryTest, PairsEqualTrl) {
  const std::vector<Golden> all = goldens();
  for (const Golden& chosen : all)
    for (const Golden& rejected : all) {
      const bool same = chosen.tokenizer == rejected.tokenizer && chosen.chat == rejected.chat &&
                        chosen.row["prompt"] == rejected.row["prompt"];
      const size_t prompt = std::min(chosen.prompt_tokens, rejected.prompt_tokens);
      if (!same || prompt == 0) continue;
      const Json row{{"prompt", chosen.row["prompt"]},
                     {"chosen", chosen.row["completion"]},
                     {"rejected", rejected.row["completion"]}};
      const PreferenceSample pair = make_preference(
          row.dump(), "f:1", kRows, tokenizer(chosen.tokenizer), chat(chosen), 1000);
      EXPECT_EQ(pair.prompt_ids.size(), prompt) << row;
      Ids ids = pair.prompt_ids;
      ids.insert(ids.end(), pair.chosen_ids.begin(), pair.chosen_ids.end());
      EXPECT_EQ(ids, chosen.ids) << chosen.tokenizer << row;
      ids = pair.prompt_ids;
      ids.insert(ids.end(), pair.rejected_ids.begin(), pair.rejected_ids.end());
      EXPECT_EQ(ids, rejected.ids) << chosen.tokenizer << row;
    }
}

// Two completions part from the prompt at different tokens: the pair's prompt ends at the first.
TEST_F(BoundaryTest, TheEarlierBoundaryIsThePairs) {
  const models::Tokenizer& mistral = tokenizer("mistral");
  const PreferenceSample pair =
      make_preference(R"({"prompt":"The student lea","chosen":"rns","rejected":" no"})", "f:1",
                      kRows, mistral, test::chat_template(), 100);
  EXPECT_TRUE(pair.prompt_differs);
  const auto text = [&](Ids ids) {
    ids.insert(ids.begin(), pair.prompt_ids.begin(), pair.prompt_ids.end());
    return mistral.decode(ids, true);
  };
  EXPECT_EQ(text(pair.chosen_ids), "The student learns");
  EXPECT_EQ(text(pair.rejected_ids), "The student lea no");
  EXPECT_EQ(mistral.decode(pair.prompt_ids, true), "The student");
}

// One conversation as messages, as prompt and completion of messages, and as strings.
TEST_F(BoundaryTest, AConversationHasTheSameTokensHoweverItIsWritten) {
  int conversations = 0;
  for (const Golden& golden : goldens()) {
    if (golden.chat.empty()) continue;
    const models::Tokenizer& cut = tokenizer(golden.tokenizer);
    const models::ChatTemplate template_ = chat(golden);
    Json messages = golden.row["prompt"];
    messages.push_back(golden.row["completion"][0]);
    const Sample whole = make_sample(Json{{"messages", messages}}.dump(), "f:1", kRows, cut,
                                     template_, {.assistant_only_loss = false});
    EXPECT_EQ(whole.input_ids, golden.ids) << golden.tokenizer << messages;

    // A template that renders the prompt otherwise has no prompt of strings.
    if (golden.prompt_differs) continue;
    const std::string prompt = template_.render(golden.row["prompt"].dump(), true).text;
    const std::string all = template_.render(messages.dump(), false).text;
    const Sample strings =
        make_sample(Json{{"prompt", prompt}, {"completion", all.substr(prompt.size())}}.dump(),
                    "f:1", kRows, cut, template_, {});
    EXPECT_EQ(strings.input_ids, golden.ids) << golden.tokenizer << messages;
    EXPECT_EQ(strings.is_target[golden.prompt_tokens], 1);
    EXPECT_EQ(strings.is_target[golden.prompt_tokens - 1], 0);
    ++conversations;
  }
  EXPECT_GT(conversations, 8);
}

// A generation prompt whose end no conversation has: a generator begins from other tokens.
TEST_F(BoundaryTest, PromptsOfConversationsAreComparedWhereThatIsAsked) {
  test::TemporaryFolder folder;
  const models::Tokenizer words = test::word_tokenizer(folder.path());
  const std::string row =
      R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2"}]})";
  const auto differs = [&](const char* source, bool compare) {
    return make_sample(row, "f:1", kRows, words, test::chat_template(source),
                       {.assistant_only_loss = false, .compare_prompts = compare})
        .prompt_differs;
  };
  constexpr const char* kAlike =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  constexpr const char* kOther =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>w9{% endif %}";
  EXPECT_FALSE(differs(kAlike, true));
  EXPECT_TRUE(differs(kOther, true));
  EXPECT_FALSE(differs(kOther, false)) << "another rendering for each row";
}

TEST_F(BoundaryTest, RowsWhosePromptDiffersAreCountedOnce) {
  test::TemporaryFolder folder;
  const auto path =
      folder.write("p.jsonl",
                   "{\"prompt\":\"w1 w2\",\"chosen\":\" w3\",\"rejected\":\" w4 w5\"}\n"
                   "{\"prompt\":\"w1 w2\",\"chosen\":\"3\",\"rejected\":\" w4\"}\n"
                   "{\"prompt\":\"w1 w3\",\"chosen\":\" w3\",\"rejected\":\"4\"}\n");
  const PreferenceDataset pairs({{.path = path.string()}}, {}, test::word_tokenizer(folder.path()),
                                test::chat_template(), "");
  for (int twice = 0; twice < 2; ++twice)
    for (int64_t row = 0; row < 3; ++row)
      EXPECT_EQ(pairs.get(row)->prompt_differs, row > 0);
  const RowSet::ReadRows rows = pairs.read_rows();
  EXPECT_EQ(rows.num_rows, 3);
  EXPECT_EQ(rows.num_prompts_differ, 2);
  EXPECT_TRUE(rows.first_that_differs.ends_with("p.jsonl:2")) << rows.first_that_differs;
  EXPECT_EQ(rows.longest, 3 + 3);
  EXPECT_TRUE(rows.longest_origin.ends_with("p.jsonl:1"));
}

TEST_F(BoundaryTest, APromptOfWhichNothingIsLeftIsABadRow) {
  test::TemporaryFolder folder;
  const models::Tokenizer words = test::word_tokenizer(folder.path(), {.adds_bos = false});
  const std::string message = test::message_of([&] {
    make_sample(R"({"prompt":"w1","completion":"2"})", "f:1", kRows, words, test::chat_template(),
                {});
  });
  EXPECT_NE(message.find("nothing of it is left"), std::string::npos) << message;
}

}  // namespace
}  // namespace retort::data
