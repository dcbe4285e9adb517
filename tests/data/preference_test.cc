#include "recipes/data/preference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/data/prompt_dataset.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using test::word;
using Ids = std::vector<int32_t>;

class PreferenceTest : public testing::Test {
 protected:
  PreferenceSample make(const std::string& line, int64_t max_length = 100,
                        Source source = {.path = "p.jsonl"}) {
    return make_preference(line, "p.jsonl:3", source, tokenizer_, chat_, max_length);
  }
  void expect_error(const std::string& line, const std::string& part, int64_t max_length = 100,
                    Source source = {.path = "p"}) {
    const std::string message = test::message_of([&] { make(line, max_length, source); });
    EXPECT_TRUE(message.starts_with("p.jsonl:3: ")) << line << ": " << message;
    EXPECT_NE(message.find(part), std::string::npos) << line << ": " << message;
  }
  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
  models::ChatTemplate chat_ = test::chat_template();
};

TEST_F(PreferenceTest, Strings) {
  const auto pair =
      make(R"({"prompt":"w1 w2","chosen":" w3","rejected":" w4 w5</s>","score":0.5,"who":"me"})");
  EXPECT_EQ(pair.prompt_ids, (Ids{test::kBos, word(1), word(2)}));
  EXPECT_EQ(pair.chosen_ids, (Ids{word(3), test::kEos}));
  EXPECT_EQ(pair.rejected_ids, (Ids{word(4), word(5), test::kEos})) << "EOS is not appended twice";
  EXPECT_EQ(pair.origin, "p.jsonl:3");
  EXPECT_EQ(pair.fields,
            (std::vector<std::pair<std::string, std::string>>{{"score", "0.5"}, {"who", "me"}}));
  EXPECT_EQ(pair.num_tokens(), 2 * 3 + 2 + 3);
  EXPECT_FALSE(pair.truncated);
  EXPECT_FALSE(pair.identical);
  EXPECT_EQ(make(R"({"prompt":"w1","chosen":"","rejected":"w4"})").chosen_ids, Ids{test::kEos})
      << "says nothing and stops";
}

TEST_F(PreferenceTest, StringsWithoutAPromptAreCutAtAWord) {
  const struct {
    const char *chosen, *rejected;
    Ids prompt, better, worse;
  } cases[] = {
      {"w1 w2 w3", "w1 w2 w4", {1, 2}, {3}, {4}},
      {"w1 w22 w3", "w1 w23 w3", {1}, {22, 3}, {23, 3}},  // not inside "w2."
      {"w1\\n\\nw2 w3", "w1\\n\\nw4", {1}, {2, 3}, {4}},  // the break belongs to the completions
      {"w1 w2", "w1 w2 w3", {1}, {2}, {2, 3}},            // one is the beginning of the other
      {"w1 w2", "w1 w2", {1}, {2}, {2}},
  };
  const auto words = [](Ids ids, bool first) {
    for (int32_t& id : ids)
      id = word(id);
    ids.insert(first ? ids.begin() : ids.end(), first ? test::kBos : test::kEos);
    return ids;
  };
  for (const auto& c : cases) {
    const auto pair =
        make(std::string("{\"chosen\":\"") + c.chosen + "\",\"rejected\":\"" + c.rejected + "\"}");
    EXPECT_EQ(pair.prompt_ids, words(c.prompt, true)) << c.chosen;
    EXPECT_EQ(pair.chosen_ids, words(c.better, false)) << c.chosen;
    EXPECT_EQ(pair.rejected_ids, words(c.worse, false)) << c.chosen;
  }

  // Without a shared word there is no place to cut.
  expect_error(R"({"chosen":"w1 w2","rejected":"w3 w2"})", "share no beginning");
  expect_error(R"({"chosen":"w11","rejected":"w12"})", "add a prompt column");
  expect_error(R"({"chosen":" w11","rejected":" w12"})", "add a prompt column");
}

constexpr const char* kConversation =
    R"({"chosen":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2"}],)"
    R"("rejected":[{"role":"user","content":"w1"},{"role":"assistant","content":"w3 w4"}]})";

TEST_F(PreferenceTest, MessagesWithAndWithoutAPrompt) {
  const auto implicit = make(kConversation);
  EXPECT_EQ(implicit.prompt_ids, (Ids{test::kUser, word(1), test::kEnd, test::kAssistant}));
  EXPECT_EQ(implicit.chosen_ids, (Ids{word(2), test::kEnd}))
      << "the template ends its turns itself";
  EXPECT_EQ(implicit.rejected_ids, (Ids{word(3), word(4), test::kEnd}));

  const auto given =
      make(R"({"prompt":[{"role":"user","content":"w1"}],"chosen":[{"role":"assistant",)"
           R"("content":"w2"}],)"
           R"("rejected":[{"role":"assistant","content":"w3 w4"}]})");
  EXPECT_EQ(given.prompt_ids, implicit.prompt_ids);
  EXPECT_EQ(given.chosen_ids, implicit.chosen_ids);
  EXPECT_EQ(given.rejected_ids, implicit.rejected_ids);

  // A string prompt that repeats the last shared message, as in ultrafeedback_binarized.
  std::string repeated = kConversation;
  repeated.insert(1, R"("prompt":"w1",)");
  EXPECT_EQ(make(repeated).prompt_ids, implicit.prompt_ids);
  repeated.replace(repeated.find("w1"), 2, "w9");
  expect_error(repeated, "the last message they share is not the prompt");
}

TEST_F(PreferenceTest, ConversationsKeepTheirLastMessage) {
  const std::string user = R"({"role":"user","content":"w1"})",
                    good = R"({"role":"assistant","content":"w2"})";
  const auto same =
      make("{\"chosen\":[" + user + "," + good + "],\"rejected\":[" + user + "," + good + "]}");
  EXPECT_EQ(same.prompt_ids, (Ids{test::kUser, word(1), test::kEnd, test::kAssistant}));
  EXPECT_EQ(same.chosen_ids, (Ids{word(2), test::kEnd}));
  EXPECT_TRUE(same.identical);
  expect_error("{\"chosen\":[" + good + "],\"rejected\":[" + good + "]}", "add a prompt column");
  expect_error("{\"chosen\":[" + user + "," + good + "],\"rejected\":[" + good + "," + good + "]}",
               "add a prompt column");
  expect_error(R"({"chosen":[],"rejected":[{"role":"user","content":"w1"}]})",
               "'chosen' is an empty array");
}

TEST_F(PreferenceTest, LossSwitchesThatAskForSomethingElseAreRefused) {
  const auto row = [](const std::string& user, const std::string& good, const std::string& bad) {
    const auto chat = [&](const std::string& answer, const std::string& key) {
      return R"([{"role":"user","content":"w1")" + user + R"(},{"role":"assistant","content":")" +
             answer + '"' + key + "}]";
    };
    return R"({"chosen":)" + chat("w2", good) + R"(,"rejected":)" + chat("w3", bad) + "}";
  };
  const Ids plain = make(row("", "", "")).chosen_ids;
  EXPECT_EQ(make(row(R"(,"weight":0)", R"(,"weight":1)", R"(,"weight":1)")).chosen_ids, plain);
  expect_error(row("", R"(,"weight":0)", ""),
               "chosen[1].weight is 0, but a pair compares whole completions");
  expect_error(row("", "", R"(,"train":false)"), "rejected[1].train is false, but a pair");
  expect_error(row(R"(,"loss":true)", "", ""),
               "chosen[0].loss is true, but nothing of a prompt is learned");
  expect_error(R"({"prompt":[{"role":"user","content":"w1","loss":1}],)"
               R"("chosen":[{"role":"assistant","content":"w2"}],)"
               R"("rejected":[{"role":"assistant","content":"w3"}]})",
               "prompt[0].loss is 1, but nothing of a prompt is learned");
  expect_error(R"({"prompt":[{"role":"user","content":"w1"}],)"
               R"("chosen":[{"role":"assistant","content":"w2"}],)"
               R"("rejected":[{"role":"assistant","content":"w3","loss":0}]})",
               "rejected[0].loss is 0, but a pair compares whole completions");
}

TEST_F(PreferenceTest, KeepsTheStart) {
  const std::string line = R"({"prompt":"w1 w2","chosen":"w3 w4 w5","rejected":"w3 w4 w6"})";
  const auto cut = make(line, 6);
  EXPECT_EQ(cut.chosen_ids, (Ids{word(3), word(4), word(5)})) << "EOS is what was cut";
  EXPECT_TRUE(cut.truncated);
  EXPECT_FALSE(cut.identical);
  EXPECT_TRUE(make(line, 5).identical) << "what is left may be the same";
  EXPECT_FALSE(make(line, 7).truncated);
  expect_error(line, "'chosen' lies beyond max_length 3 (the prompt has 3 tokens", 3);
}

// The last max_length tokens of each of the two sequences: as TRL's collator cuts them.
TEST_F(PreferenceTest, KeepEndCutsEachSequenceByItself) {
  const std::string line = R"({"prompt":"w1 w2","chosen":" w3","rejected":" w4 w5 w6"})";
  const Ids prompt{test::kBos, word(1), word(2)};
  const Ids chosen{word(3), test::kEos}, rejected{word(4), word(5), word(6), test::kEos};
  const auto cut_to = [&](int64_t max_length) {
    return make_preference(line, "p.jsonl:3", {.path = "p.jsonl"}, tokenizer_, chat_, max_length,
                           TruncationMode::kKeepEnd);
  };
  const PreferenceSample whole = cut_to(7);
  EXPECT_FALSE(whole.truncated);
  EXPECT_TRUE(whole.shares_prompt());

  for (const int64_t max_length : {6, 5, 4, 3, 2}) {
    SCOPED_TRACE(max_length);
    const PreferenceSample pair = cut_to(max_length);
    EXPECT_TRUE(pair.truncated);
    EXPECT_EQ(pair.shares_prompt(), false);
    const auto expect_end = [&](Ids all, const Ids& completion, const Ids& kept_prompt,
                                const Ids& kept) {
      all.insert(all.end(), completion.begin(), completion.end());
      const auto length = std::min<int64_t>(max_length, std::ssize(all));
      Ids joined = kept_prompt;
      joined.insert(joined.end(), kept.begin(), kept.end());
      EXPECT_EQ(joined, Ids(all.end() - length, all.end()));
      EXPECT_EQ(std::ssize(kept), std::min(std::ssize(completion), std::ssize(joined) - 1));
    };
    expect_end(prompt, chosen, pair.prompt_ids, pair.chosen_ids);
    expect_end(prompt, rejected, pair.rejected_prompt_ids(), pair.rejected_ids);
  }
  EXPECT_EQ(cut_to(4).num_tokens(), 8);
  EXPECT_EQ(cut_to(6).num_tokens(), 5 + 6);
}

TEST_F(PreferenceTest, ColumnsAndErrors) {
  const Source mapped{.path = "p",
                      .columns = {{"prompt", "q"}, {"chosen", "good"}, {"rejected", "bad"}}};
  EXPECT_EQ(make(R"({"q":"w1","good":"w2","bad":"w3","chosen":"w9"})", 100, mapped).chosen_ids,
            (Ids{word(2), test::kEos}));
  EXPECT_EQ(make(R"({"prompt":"w1","chosen":"w2","rejected":"w3"})", 100,
                 {.path = "p", .format = Format::kPreference})
                .prompt_ids,
            (Ids{test::kBos, word(1)}));
  expect_error(R"({"prompt":"w1","chosen":"w2"})", "'rejected' is missing or null");
  expect_error(R"({"prompt":"w1","chosen":null,"rejected":"w2"})", "'chosen' is missing or null");
  expect_error(R"({"prompt":"w1","chosen":"w2","rejected":"w3"})", "format: text has no pairs", 100,
               {.path = "p", .format = Format::kText});
  expect_error(R"({"prompt":"w1","chosen":"w2","rejected":[{"role":"assistant","content":"w3"}]})",
               "two strings or two arrays");
  expect_error(R"({"prompt":[{"role":"user","content":"w1"}],"chosen":"w2","rejected":"w3"})",
               "expected a string");
  expect_error(R"({"prompt":5,"chosen":[{"role":"user","content":"w1"}],)"
               R"("rejected":[{"role":"user","content":"w1"}]})",
               "'prompt' is a number");
  expect_error(R"({"prompt":"w1","chosen":"w2","rejected":"w3","tools":[{"a":1}]})", "'tools'");
  expect_error("{\"chosen\"", "malformed JSON");
}

TEST_F(PreferenceTest, OtherRecipesSayWhatToDo) {
  const std::string line = R"({"prompt":"w1","chosen":"w2","rejected":"w3"})";
  const auto sft = [&](Format format) {
    return test::message_of(
        [&] { make_sample(line, "p", {.path = "p", .format = format}, tokenizer_, chat_, {}); });
  };
  EXPECT_NE(sft(Format::kAuto).find("columns: {completion: chosen}"), std::string::npos)
      << sft(Format::kAuto);
  EXPECT_NE(sft(Format::kPreference).find("columns: {completion: chosen}"), std::string::npos);
  const Source better{.path = "p", .columns = {{"completion", "chosen"}}};
  EXPECT_EQ(make_sample(line, "p", better, tokenizer_, chat_, {}).input_ids,
            (Ids{test::kBos, word(1), word(2), test::kEos}));
  for (const Format format : {Format::kAuto, Format::kPreference})
    EXPECT_EQ(make_prompt(line, "p", {.path = "p", .format = format}, tokenizer_, chat_).prompt_ids,
              (Ids{test::kBos, word(1)}));
}

TEST_F(PreferenceTest, Datasets) {
  const auto rows =
      folder_.write("p.jsonl", R"({"prompt":"w1","chosen":"w2","rejected":"w3"})"
                               "\nbad\n"
                               R"({"prompt":"w1 w2 w3 w4","chosen":"w2","rejected":"w3"})");
  const Source source{.path = rows.string()};
  const PreferenceDataset strict({source}, {}, tokenizer_, chat_, {});
  EXPECT_EQ(strict.size(), 3);
  EXPECT_EQ(strict.get(2)->origin, rows.string() + ":3");
  EXPECT_EQ(strict.origin(2), rows.string() + ":3");
  EXPECT_TRUE(strict.usable(1)) << "not looked at where bad rows are errors";
  EXPECT_THROW(strict.get(1), Error);
  const PreferenceDataset skipping({source}, {.max_length = 5, .on_bad_sample = OnBadSample::kSkip},
                                   tokenizer_, chat_, {});
  EXPECT_TRUE(skipping.usable(0));
  EXPECT_FALSE(skipping.usable(1));
  EXPECT_FALSE(skipping.get(2)) << "nothing is left of the completions";
  EXPECT_EQ(skipping.num_skipped(), 2);
  const PromptDataset prompts({source}, {.max_length = 5, .on_bad_sample = OnBadSample::kSkip},
                              tokenizer_, chat_, {});
  EXPECT_EQ(prompts.get(0)->prompt_ids, (Ids{test::kBos, word(1)}));
  EXPECT_FALSE(prompts.get(1));
  EXPECT_FALSE(prompts.usable(2));
  EXPECT_NE(prompts.first_skip_reason().find(":2: malformed"), std::string::npos);
  const PromptDataset tight({source}, {.max_length = 5}, tokenizer_, chat_, {});
  EXPECT_NE(test::message_of([&] { tight.get(2); }).find(":3: the prompt has 5 tokens"),
            std::string::npos);

  // The message has the numbers of the recipe: what a completion needs, and the whole length.
  const PromptDataset roomy({source}, {.max_length = 9}, tokenizer_, chat_, {}, 4);
  EXPECT_EQ(roomy.get(2)->prompt_ids.size(), 5u);
  const PromptDataset full({source}, {.max_length = 9}, tokenizer_, chat_, {}, 5);
  EXPECT_NE(test::message_of([&] {
              full.get(2);
            }).find("no room for a completion of 5 within data.max_length 9; raise it"),
            std::string::npos);
  EXPECT_EQ(full.fingerprint(), tight.fingerprint()) << "the same prompts";

  EXPECT_NE(strict.fingerprint(), skipping.fingerprint());
  EXPECT_EQ(strict.fingerprint(),
            PreferenceDataset({source}, {.packing = false}, tokenizer_, chat_, {}).fingerprint());
  EXPECT_NE(skipping.fingerprint(), prompts.fingerprint());
  EXPECT_NE(strict.fingerprint(), Dataset({source}, {}, tokenizer_, chat_, {}).fingerprint());
}

TEST_F(PreferenceTest, PromptsKeepTheOtherColumns) {
  const auto prompt = make_prompt(R"({"prompt":"w1","answer":4,"level":"hard","id":7})", "p",
                                  {.path = "p"}, tokenizer_, chat_);
  EXPECT_EQ(prompt.reference, "4");
  EXPECT_EQ(prompt.fields,
            (std::vector<std::pair<std::string, std::string>>{{"level", "hard"}, {"id", "7"}}));
}

}  // namespace
}  // namespace retort::data
