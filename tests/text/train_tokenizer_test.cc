// A tokenizer that we train: what it keeps, and that it is the same every time.
#include <algorithm>
#include <chrono>

#include "base/random.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  const Json cases = read_json(golden("gpt2") / "cases.json");
  for (const auto& entry : cases["texts"])
    texts.push_back(entry["text"]);
  for (int i = 0; i < 60; ++i) {
    texts.push_back("the student number " + std::to_string(i * 37) +
                    " learns what the teacher knows, token by token.");
    texts.push_back(
        "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n");
  }
  return texts;
}

constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                  "special_tokens_map.json"};

TEST(TrainTokenizer, RoundTripsEveryText) {
  test::TemporaryFolder folder;
  train_tokenizer(corpus(), {.vocab_size = 400}, folder.path() / "new/folder");
  const auto tokenizer = Tokenizer::load(folder.path() / "new/folder");
  EXPECT_EQ(tokenizer.vocab_size(), 400);
  EXPECT_EQ(tokenizer.token_to_id("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.token_to_id("<|im_end|>"));
  EXPECT_EQ(tokenizer.pad_id(), tokenizer.token_to_id("<|endoftext|>"));
  EXPECT_EQ(tokenizer.bos_id(), -1);

  // Texts that it was trained on.
  for (const Json entries = read_json(golden("gpt2") / "cases.json")["texts"];
       const auto& entry : entries) {
    const std::string text = entry["text"];
    SCOPED_TRACE(testing::PrintToString(text));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
    EXPECT_EQ(tokenizer.encode(text, true), tokenizer.encode(text, false));
  }

  // Text that the training never saw.
  std::string bytes;
  for (uint32_t c = 1; c < 0x250; ++c) {
    if (c >= 0x80)
      bytes += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    else
      bytes += static_cast<char>(c);
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes, false), false), bytes);
  EXPECT_LT(tokenizer.encode("the student learns what the teacher knows", false).size(), 16u);
}

TEST(TrainTokenizer, SpecialTokensAreWholeAndLeaveNoMerges) {
  test::TemporaryFolder folder;
  train_tokenizer(corpus(), {.vocab_size = 420}, folder.path());
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.encode("<|im_start|><|im_end|><|endoftext|>", false),
            (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 2, 0}, true), "");
  for (int32_t id = 3; id < tokenizer.vocab_size(); ++id) {
    EXPECT_EQ(tokenizer.id_to_token(id).find("im_"), std::string::npos)
        << tokenizer.id_to_token(id);
  }
}

TEST(TrainTokenizer, DependsOnTheTextsAlone) {
  test::TemporaryFolder folder;
  auto texts = corpus();
  train_tokenizer(texts, {.vocab_size = 500}, folder.path() / "a");
  train_tokenizer(texts, {.vocab_size = 500}, folder.path() / "b");
  std::reverse(texts.begin(), texts.end());
  train_tokenizer(texts, {.vocab_size = 500}, folder.path() / "c");
  for (const char* file : kFiles) {
    EXPECT_EQ(read_file(folder.path() / "a" / file), read_file(folder.path() / "b" / file)) << file;
    EXPECT_EQ(read_file(folder.path() / "a" / file), read_file(folder.path() / "c" / file)) << file;
  }
  texts.push_back("zqzq zqzq zqzq zqzq zqzq zqzq zqzq zqzq");
  train_tokenizer(texts, {.vocab_size = 500}, folder.path() / "d");
  EXPECT_NE(read_file(folder.path() / "a/tokenizer.json"),
            read_file(folder.path() / "d/tokenizer.json"));
}

TEST(TrainTokenizer, ChatTemplateMarksTheAnswerAndItsEnd) {
  test::TemporaryFolder folder;
  train_tokenizer(corpus(), {.vocab_size = 300}, folder.path());
  const auto tokenizer = Tokenizer::load(folder.path());
  const auto chat = ChatTemplate::load(folder.path());
  ASSERT_TRUE(chat.has_generation_marks());
  const char* messages =
      R"([{"role": "system", "content": "S"}, {"role": "user",
     "content": [{"type": "text", "text": "a"},
    {"type": "text", "text": "b"}]}, {"role": "assistant", "content": " Yo \n"},
     {"role": "user", "content": "c"}])";
  const std::string expected =
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
      " Yo \n<|im_end|>\n<|im_start|>user\nc<|im_end|>\n";
  EXPECT_EQ(chat.render(messages, false).text, expected);
  EXPECT_EQ(chat.render(messages, true).text, expected + "<|im_start|>assistant\n");
  const auto tokens = tokenize_chat(tokenizer, chat, messages);
  std::vector<int32_t> said;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.assistant[i]) said.push_back(tokens.ids[i]);
  }
  EXPECT_EQ(tokenizer.decode(said, false), " Yo \n<|im_end|>");
}

TEST(TrainTokenizer, KeepsTheOrderOfOwnSpecialTokens) {
  test::TemporaryFolder folder;
  TokenizerTrainOptions options{
      .vocab_size = 261,
      .special_tokens = {"<|x|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<é>"}};
  train_tokenizer({"abc"}, options, folder.path());
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 261);
  for (size_t i = 0; i < options.special_tokens.size(); ++i) {
    EXPECT_EQ(tokenizer.id_to_token(static_cast<int32_t>(i)), options.special_tokens[i]);
  }
}

TEST(TrainTokenizer, RefusesBadOptions) {
  test::TemporaryFolder folder;
  const auto train = [&](TokenizerTrainOptions options, std::string text = "text") {
    return test::message_of([&] { train_tokenizer({text}, options, folder.path() / "out"); });
  };
  EXPECT_NE(train({.vocab_size = 258}).find("vocab_size"), std::string::npos);
  EXPECT_NE(train({.vocab_size = -1}).find("vocab_size"), std::string::npos);
  EXPECT_NE(train({.special_tokens = {"<|endoftext|>"}}).find("im_start"), std::string::npos);
  EXPECT_NE(
      train({.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", ""}}).find("empty"),
      std::string::npos);
  EXPECT_NE(train({.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "a"}})
                .find("twice"),
            std::string::npos);
  for (const char* ordinary : {"a", "\u00e9"}) {
    const auto text =
        train({.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", ordinary}},
              "the the the the");
    EXPECT_NE(text.find("ordinary token"), std::string::npos) << ordinary;
  }
  EXPECT_NE(train({}, "\xff").find("training text 0"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out/tokenizer.json"));
}

}  // namespace
}  // namespace retort::models
