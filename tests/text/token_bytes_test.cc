// The bytes of a text's tokens, one behind the other, are the text.
#include "models/text/token_bytes.h"

#include <gtest/gtest.h>

#include "models/text/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

// All of them in NFC, which Qwen's tokenizer makes of every text.
const std::vector<std::string> kTexts{
    "The cat sat.",
    "two  spaces,    four, and one behind ",
    "\ttabs\t\tand\nlines\n\n\nand \n \n both",
    "\r\nWindows\r\n",
    "def f(x):\n    return x**2  # 100% fine\n",
    "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 1️⃣",
    "学生从老师那里学习。你好，世界！ 東京 안녕",
    "مرحبا بالعالم שלום ٣٫١٤",
    "x\u0303 q\u0323\u0307 ครับ हिन्दी Größe naïve",
    "\u00a0no\u2009break\u3000here\u200d",
    "Ġ ▁ Ċ <0x41> Ā",
    "12345 3.14159 1,000,000",
    "\x01\x7f control",
};

std::string bytes_of(const Tokenizer& tokenizer, const std::string& text) {
  const TokenBytes tokens(tokenizer);
  std::string bytes;
  for (const int32_t id : tokenizer.encode(text, /*add_special_tokens=*/false))
    bytes += tokens.of(id);
  return bytes;
}

TEST(TokenBytes, OfByteLevelTokensAreTheText) {
  for (const char* name : {"gpt2", "qwen", "llama3"}) {
    const auto tokenizer = Tokenizer::load(golden(name));
    for (const std::string& text : kTexts)
      EXPECT_EQ(bytes_of(tokenizer, text), text) << name;
  }
}

// Llama 2's normaliser puts a space before every text, Mistral's pre-tokenizer before those that
// begin with none. "▁" in a text is a space for both.
TEST(TokenBytes, OfSentencepiecesKindHaveASpaceBeforeTheText) {
  const auto llama2 = Tokenizer::load(golden("llama2"));
  const auto mistral = Tokenizer::load(golden("mistral"));
  for (const std::string& text : kTexts) {
    if (text.find("▁") != std::string::npos) continue;
    EXPECT_EQ(bytes_of(llama2, text), " " + text);
    EXPECT_EQ(bytes_of(mistral, text), " " + text);
  }
  EXPECT_EQ(bytes_of(llama2, " begins"), "  begins");
  EXPECT_EQ(bytes_of(mistral, " begins"), " begins");
  EXPECT_EQ(bytes_of(Tokenizer::load(golden("unigram")), "The cat"), " The cat");
}

TEST(TokenBytes, AreReadOffTheSpellingOfATokensKind) {
  const auto gpt2 = Tokenizer::load(golden("gpt2"));
  const TokenBytes byte_level(gpt2);
  EXPECT_EQ(byte_level.of(gpt2.token_to_id("Ġ")), " ");
  EXPECT_EQ(byte_level.of(gpt2.token_to_id("Ċ")), "\n");
  EXPECT_EQ(byte_level.of(gpt2.token_to_id("Ń")), "\xad");
  EXPECT_EQ(byte_level.of(gpt2.token_to_id("ÿ")), "\xff");
  EXPECT_FALSE(byte_level.is_fallback(gpt2.token_to_id("A")));

  const auto llama2 = Tokenizer::load(golden("llama2"));
  const TokenBytes pieces(llama2);
  EXPECT_EQ(pieces.of(llama2.token_to_id("▁")), " ");
  EXPECT_EQ(pieces.of(llama2.token_to_id("<0x0A>")), "\n");
  EXPECT_EQ(pieces.of(llama2.token_to_id("<0xFF>")), "\xff");
  EXPECT_TRUE(pieces.is_fallback(llama2.token_to_id("<0x41>")));
  EXPECT_FALSE(pieces.is_fallback(llama2.token_to_id("A")));
}

TEST(TokenBytes, KnowSpecialTokensAndIdsWithoutOne) {
  const auto qwen = Tokenizer::load(golden("qwen"));
  const TokenBytes tokens(qwen);
  EXPECT_EQ(tokens.size(), qwen.vocab_size());
  const int32_t end = qwen.token_to_id("<|im_end|>");
  EXPECT_EQ(tokens.of(end), "<|im_end|>");
  EXPECT_TRUE(tokens.is_special(end));
  const int32_t thought = qwen.token_to_id("<think>");
  EXPECT_EQ(tokens.of(thought), "<think>");
  EXPECT_FALSE(tokens.is_special(thought));

  for (const int32_t id : {-1, static_cast<int32_t>(tokens.size()), 1 << 30}) {
    EXPECT_EQ(tokens.of(id), "");
    EXPECT_FALSE(tokens.is_special(id));
    EXPECT_FALSE(tokens.is_fallback(id));
  }

  // It is named in special_tokens_map.json alone.
  const auto llama2 = Tokenizer::load(golden("llama2"));
  EXPECT_TRUE(TokenBytes(llama2).is_special(llama2.token_to_id("<pad>")));
}

// A golden tokenizer with one more token, which tokenizer.json or the configuration adds.
class AddedToken : public testing::Test {
 protected:
  Tokenizer with(const std::string& name, const std::string& content, bool special,
                 bool in_config = false) {
    Json tokenizer = read_json(golden(name) / "tokenizer.json");
    Json config = Json::object();
    const int64_t id = Tokenizer::load(golden(name)).vocab_size();
    Json token = {{"content", content}, {"single_word", false}, {"lstrip", false},
                  {"rstrip", false},    {"normalized", false},  {"special", special}};
    if (in_config) {
      config["added_tokens_decoder"][std::to_string(id)] = token;
    } else {
      token["id"] = id;
      tokenizer["added_tokens"].push_back(token);
    }
    folder_.write("tokenizer.json", tokenizer.dump());
    folder_.write("tokenizer_config.json", config.dump());
    return Tokenizer::load(folder_.path());
  }
  std::string bytes(const Tokenizer& tokenizer, const std::string& content) {
    return std::string(TokenBytes(tokenizer).of(tokenizer.token_to_id(content)));
  }

  test::TemporaryFolder folder_;
};

TEST_F(AddedToken, StandsForItsContent) {
  for (const bool in_config : {false, true}) {
    // Letters that are bytes in other tokens.
    EXPECT_EQ(bytes(with("gpt2", "Ġé", false, in_config), "Ġé"), "Ġé");
    EXPECT_EQ(bytes(with("gpt2", "    ", false, in_config), "    "), "    ");
    EXPECT_EQ(bytes(with("gpt2", "<｜end▁of▁text｜>", true, in_config), "<｜end▁of▁text｜>"),
              "<｜end▁of▁text｜>");
    EXPECT_EQ(bytes(with("mistral", "<｜end▁of▁text｜>", true, in_config), "<｜end▁of▁text｜>"),
              "<｜end▁of▁text｜>");
  }
}

// Gemma lists what its model makes of two spaces among the added tokens.
TEST_F(AddedToken, OfSentencepiecesKindHasSpaces) {
  EXPECT_EQ(bytes(with("mistral", "▁▁", false), "▁▁"), "  ");
}

TEST(TokenBytes, OfWordsAreRefused) {
  const auto tokenizer = Tokenizer::load(golden("wordpiece"));
  test::expect_refused(golden("wordpiece").string(), [&] { TokenBytes{tokenizer}; });
  test::expect_refused("where spaces were", [&] { TokenBytes{tokenizer}; });
}

}  // namespace
}  // namespace retort::models
