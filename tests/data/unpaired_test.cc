#include "recipes/data/unpaired.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "recipes/data/unpaired_dataset.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using test::word;
using Ids = std::vector<int32_t>;

class UnpairedTest : public testing::Test {
 protected:
  UnpairedSample make(const std::string& line, int64_t max_length = 100,
                      Source source = {.path = "k.jsonl"}) {
    return make_unpaired(line, "k.jsonl:3", source, tokenizer_, chat_, max_length);
  }
  void expect_error(const std::string& line, const std::string& part, int64_t max_length = 100,
                    Source source = {.path = "k"}) {
    const std::string message = test::message_of([&] { make(line, max_length, source); });
    EXPECT_TRUE(message.starts_with("k.jsonl:3: ")) << line << ": " << message;
    EXPECT_NE(message.find(part), std::string::npos) << line << ": " << message;
  }
  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
  models::ChatTemplate chat_ = test::chat_template();
};

TEST_F(UnpairedTest, Strings) {
  const auto row =
      make(R"({"prompt":"w1 w2","completion":" w3","label":true,"score":0.5,"who":"me"})");
  EXPECT_EQ(row.prompt_ids, (Ids{test::kBos, word(1), word(2)}));
  EXPECT_EQ(row.completion_ids, (Ids{word(3), test::kEos}));
  EXPECT_TRUE(row.desirable);
  EXPECT_EQ(row.origin, "k.jsonl:3");
  EXPECT_EQ(row.fields,
            (std::vector<std::pair<std::string, std::string>>{{"score", "0.5"}, {"who", "me"}}));
  EXPECT_EQ(row.num_tokens, 3 + 2);
  EXPECT_FALSE(row.truncated);

  const auto other = make(R"({"prompt":"w1","completion":"w4 w5</s>","label":false})");
  EXPECT_FALSE(other.desirable);
  EXPECT_EQ(other.completion_ids, (Ids{word(4), word(5), test::kEos}))
      << "EOS is not appended twice";
  EXPECT_EQ(make(R"({"prompt":"w1","completion":"","label":true})").completion_ids, Ids{test::kEos})
      << "says nothing and stops";
}

TEST_F(UnpairedTest, Messages) {
  const auto row = make(R"({"prompt":[{"role":"user","content":"w1"}],)"
                        R"("completion":[{"role":"assistant","content":"w2 w3"}],"label":false})");
  EXPECT_EQ(row.prompt_ids, (Ids{test::kUser, word(1), test::kEnd, test::kAssistant}));
  EXPECT_EQ(row.completion_ids, (Ids{word(2), word(3), test::kEnd}))
      << "the template ends its turns itself";
  EXPECT_FALSE(row.desirable);
}

TEST_F(UnpairedTest, KeepsTheWholeCompletionForOtherPrompts) {
  const std::string line = R"({"prompt":"w1 w2","completion":"w3 w4 w5 w6","label":true})";
  const auto cut = make(line, 6);
  EXPECT_TRUE(cut.truncated);
  EXPECT_EQ(cut.num_tokens, 6);
  EXPECT_EQ(cut.completion_ids, (Ids{word(3), word(4), word(5), word(6), test::kEos}));
  EXPECT_EQ(fit_completion(cut.prompt_ids, cut.completion_ids, 6), (Ids{word(3), word(4), word(5)}))
      << "the start is kept";
  EXPECT_EQ(fit_completion({1}, cut.completion_ids, 6), cut.completion_ids)
      << "a shorter prompt leaves more room";

  EXPECT_EQ(make(line, 5).completion_ids, (Ids{word(3), word(4), word(5), word(6)}))
      << "no prompt has less than a token";
  EXPECT_EQ(make(line, 8).num_tokens, 8);
  EXPECT_FALSE(make(line, 8).truncated);
  expect_error(line, "'completion' lies beyond max_length 3 (the prompt has 3 tokens", 3);
}

TEST_F(UnpairedTest, LabelsAreTrueOrFalse) {
  const auto labelled = [](const std::string& label) {
    return R"({"prompt":"w1","completion":"w2","label":)" + label + "}";
  };
  EXPECT_TRUE(make(labelled("true")).desirable);
  EXPECT_FALSE(make(labelled("false")).desirable);
  for (const char* label : {"1", "0", "\"true\"", "1.0", "[true]"})
    expect_error(labelled(label), std::string("'label' is ") + label + "; expected true");
  expect_error(labelled("null"), "'label' is missing or null");
}

TEST_F(UnpairedTest, ColumnsAndErrors) {
  const Source mapped{.path = "k", .columns = {{"prompt", "q"}, {"completion", "a"}}};
  EXPECT_EQ(
      make(R"({"q":"w1","a":"w2","completion":"w9","label":true})", 100, mapped).completion_ids,
      (Ids{word(2), test::kEos}));
  EXPECT_TRUE(make(R"({"prompt":"w1","completion":"w2","label":true})", 100,
                   {.path = "k", .format = Format::kPromptCompletion})
                  .desirable);
  expect_error(R"({"prompt":"w1","completion":"w2"})", "'label' is missing or null");
  expect_error(R"({"completion":"w2","label":true})", "'prompt' is missing or null");
  expect_error(R"({"prompt":"w1","chosen":"w2","rejected":"w3"})", "'completion' is missing");
  expect_error(R"({"prompt":"w1","completion":"w2","label":true})", "format: text has no labels",
               100, {.path = "k", .format = Format::kText});
  expect_error(R"({"prompt":"w1","completion":[{"role":"assistant","content":"w2"}],"label":true})",
               "two strings or two arrays");
  expect_error(R"({"prompt":[],"completion":[{"role":"assistant","content":"w2"}],"label":true})",
               "'prompt' is an empty array");
  expect_error(R"({"prompt":"w1","completion":"w2","label":true,"tools":[{"a":1}]})", "'tools'");
  expect_error("{\"prompt\"", "malformed JSON");
}

TEST_F(UnpairedTest, LossSwitchesThatAskForSomethingElseAreRefused) {
  const auto row = [](const std::string& prompt, const std::string& completion) {
    return R"({"label":true,"prompt":[{"role":"user","content":"w1")" + prompt +
           R"(}],"completion":[{"role":"assistant","content":"w2")" + completion + "}]}";
  };
  EXPECT_EQ(make(row(R"(,"train":false)", R"(,"train":true)")).completion_ids,
            make(row("", "")).completion_ids);
  expect_error(row("", R"(,"train":false)"),
               "completion[0].train is false, but a whole completion is judged");
  expect_error(row(R"(,"train":true)", ""),
               "prompt[0].train is true, but nothing of a prompt is learned");
}

TEST_F(UnpairedTest, TheLabelsColumnMayHaveAnotherName) {
  const auto rows =
      folder_.write("k.jsonl", R"({"prompt":"w1","completion":"w2","liked":true,"label":"spam"})"
                               "\n"
                               R"({"prompt":"w1","completion":"w3","liked":false,"label":"ham"})"
                               "\n");
  const Source source{.path = rows.string(), .columns = {{"label", "liked"}}};
  const UnpairedDataset dataset({source}, {}, tokenizer_, chat_, {});
  EXPECT_TRUE(dataset.get(0)->desirable);
  EXPECT_FALSE(dataset.get(1)->desirable);
  EXPECT_EQ(dataset.get(0)->fields,
            (std::vector<std::pair<std::string, std::string>>{{"label", "spam"}}))
      << "a mapped column serves its key only, so the file's own `label` is one like any other";
  expect_error(R"({"prompt":"w1","completion":"w2","label":true})",
               "column 'liked' (columns: {label: liked}) is missing", 100, source);
}

TEST_F(UnpairedTest, Datasets) {
  const auto rows =
      folder_.write("k.jsonl", R"({"prompt":"w1","completion":"w2","label":true})"
                               "\nbad\n"
                               R"({"prompt":"w1 w2 w3 w4","completion":"w2","label":false})");
  const Source source{.path = rows.string()};
  const UnpairedDataset strict({source}, {}, tokenizer_, chat_, {});
  EXPECT_EQ(strict.size(), 3);
  EXPECT_EQ(strict.get(2)->origin, rows.string() + ":3");
  EXPECT_FALSE(strict.get(2)->desirable);
  EXPECT_TRUE(strict.usable(1)) << "not looked at where bad rows are errors";
  EXPECT_THROW(strict.get(1), Error);

  const UnpairedDataset skipping({source}, {.max_length = 5, .on_bad_sample = OnBadSample::kSkip},
                                 tokenizer_, chat_, {});
  EXPECT_TRUE(skipping.usable(0));
  EXPECT_FALSE(skipping.usable(1));
  EXPECT_FALSE(skipping.get(2)) << "nothing is left of the completion";
  EXPECT_EQ(skipping.num_skipped(), 2);
  EXPECT_NE(strict.fingerprint(), skipping.fingerprint());
  EXPECT_EQ(strict.fingerprint(),
            UnpairedDataset({source}, {.packing = false}, tokenizer_, chat_, {}).fingerprint());
  EXPECT_NE(strict.fingerprint(), Dataset({source}, {}, tokenizer_, chat_, {}).fingerprint());
}

}  // namespace
}  // namespace retort::data
