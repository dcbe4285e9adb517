// Tokenizers against transformers, token by token.
#include "models/text/tokenizer.h"

#include <algorithm>
#include <set>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

using Ids = std::vector<int32_t>;
using Offsets = std::vector<std::pair<uint32_t, uint32_t>>;

class TokenizerParity : public testing::TestWithParam<std::string> {
 protected:
  Tokenizer tokenizer_ = Tokenizer::load(golden(GetParam()));
  Json cases_ = read_json(golden(GetParam()) / "cases.json");
};

TEST_P(TokenizerParity, EncodesAsTransformers) {
  ASSERT_GT(cases_["texts"].size(), 40u);
  for (const auto& entry : cases_["texts"]) {
    const std::string text = entry["text"];
    SCOPED_TRACE(testing::PrintToString(text));
    EXPECT_EQ(tokenizer_.encode(text, false), entry["plain"].get<Ids>());
    EXPECT_EQ(tokenizer_.encode(text, true), entry["full"].get<Ids>());
    const auto plain = tokenizer_.encode_with_offsets(text, false);
    EXPECT_EQ(plain.ids, entry["plain"].get<Ids>());
    EXPECT_EQ(plain.offsets, entry["plain_offsets"].get<Offsets>());
    const auto full = tokenizer_.encode_with_offsets(text, true);
    EXPECT_EQ(full.ids, entry["full"].get<Ids>());
    EXPECT_EQ(full.offsets, entry["full_offsets"].get<Offsets>());
  }
}

TEST_P(TokenizerParity, DecodesAsTransformers) {
  for (const auto& entry : cases_["texts"]) {
    const auto ids = entry["full"].get<Ids>();
    SCOPED_TRACE(testing::PrintToString(ids));
    EXPECT_EQ(tokenizer_.decode(ids, false), entry["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_.decode(ids, true), entry["skipped"].get<std::string>());
  }
  for (const auto& entry : cases_["ids"]) {
    const auto ids = entry["ids"].get<Ids>();
    SCOPED_TRACE(testing::PrintToString(ids));
    EXPECT_EQ(tokenizer_.decode(ids, false), entry["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_.decode(ids, true), entry["skipped"].get<std::string>());
  }
}

TEST_P(TokenizerParity, KnowsTheVocabularyAndTheSpecialTokens) {
  const auto tokens = cases_["tokens"].get<std::vector<std::string>>();
  EXPECT_EQ(tokenizer_.vocab_size(), static_cast<int64_t>(tokens.size()));
  for (size_t id = 0; id < tokens.size(); ++id) {
    EXPECT_EQ(tokenizer_.id_to_token(static_cast<int32_t>(id)), tokens[id]);
    EXPECT_EQ(tokenizer_.token_to_id(tokens[id]), static_cast<int32_t>(id));
  }
  EXPECT_EQ(tokenizer_.id_to_token(-1), "");
  EXPECT_EQ(tokenizer_.id_to_token(static_cast<int32_t>(tokens.size())), "");
  EXPECT_EQ(tokenizer_.token_to_id("no such token"), -1);
  const auto id = [&](const char* name) {
    return cases_[name].is_null() ? -1 : cases_[name].get<int32_t>();
  };
  EXPECT_EQ(tokenizer_.eos_id(), id("eos"));
  EXPECT_EQ(tokenizer_.bos_id(), id("bos"));
  EXPECT_EQ(tokenizer_.pad_id(), id("pad"));
  // skip_special_tokens drops exactly what transformers calls special.
  for (const int32_t special : cases_["special"].get<Ids>()) {
    EXPECT_EQ(tokenizer_.decode(Ids{special}, true), "") << tokens[special];
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerParity,
                         testing::Values("gpt2", "qwen", "llama3", "llama2", "mistral", "wordpiece",
                                         "unigram"),
                         [](const auto& info) { return info.param; });

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = Tokenizer::load(golden("qwen"));
  const std::string text = "Several threads encode the same text at once: it's 100% fine. 学生";
  const auto expected = tokenizer.encode(text, false);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) {
        const auto ids = tokenizer.encode(text + std::to_string(n), false);
        wrong[i] += tokenizer.encode(text, false) != expected;
        wrong[i] += tokenizer.decode(ids, false) != text + std::to_string(n);
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, RefusesWhatIsNoText) {
  const auto tokenizer = Tokenizer::load(golden("gpt2"));
  EXPECT_NE(test::message_of([&] { tokenizer.encode("ab\xff", false); }).find("UTF-8"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] { tokenizer.encode_with_offsets("\xe2\x82", true); }).find("at 0"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              tokenizer.decode(Ids{1, -5}, false);
            }).find("-5"),
            std::string::npos);
}

void copy_golden(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  for (const auto& file : std::filesystem::directory_iterator(golden(name))) {
    std::filesystem::copy_file(file.path(), to / file.path().filename());
  }
}

TEST(Tokenizer, VocabularyFingerprint) {
  const auto qwen = Tokenizer::load(golden("qwen"));
  const auto whole = qwen.vocabulary_fingerprint();
  EXPECT_EQ(whole.size(), 64u);
  EXPECT_EQ(Tokenizer::load(golden("qwen")).vocabulary_fingerprint(), whole);
  EXPECT_EQ(qwen.vocabulary_fingerprint(qwen.vocab_size()), whole);
  EXPECT_NE(qwen.vocabulary_fingerprint(qwen.vocab_size() - 1), whole);
  EXPECT_NE(Tokenizer::load(golden("gpt2")).vocabulary_fingerprint(), whole);

  test::TemporaryFolder folder;
  // More tokens above the last common id: equal up to there.
  copy_golden("qwen", folder.path() / "more");
  Json json = read_json(folder.path() / "more/tokenizer.json");
  Json extra = json["added_tokens"].back();
  extra["id"] = qwen.vocab_size();
  extra["content"] = "<|extra|>";
  json["added_tokens"].push_back(extra);
  write_file_atomically(folder.path() / "more/tokenizer.json", json.dump());
  const auto more = Tokenizer::load(folder.path() / "more");
  EXPECT_EQ(more.vocab_size(), qwen.vocab_size() + 1);
  EXPECT_NE(more.vocabulary_fingerprint(), whole);
  EXPECT_EQ(more.vocabulary_fingerprint(qwen.vocab_size()), whole);

  // A special flag counts, and so does one token's text.
  copy_golden("gpt2", folder.path() / "flag");
  json = read_json(folder.path() / "flag/tokenizer.json");
  json["added_tokens"][0]["special"] = false;
  write_file_atomically(folder.path() / "flag/tokenizer.json", json.dump());
  const auto gpt2 = Tokenizer::load(golden("gpt2")).vocabulary_fingerprint();
  EXPECT_NE(Tokenizer::load(folder.path() / "flag").vocabulary_fingerprint(), gpt2);
  EXPECT_EQ(Tokenizer::load(folder.path() / "flag").processing_fingerprint(),
            Tokenizer::load(golden("gpt2")).processing_fingerprint());
}

TEST(Tokenizer, ProcessingFingerprint) {
  test::TemporaryFolder folder;
  const auto original = Tokenizer::load(golden("qwen"));
  const auto expected = original.processing_fingerprint();
  EXPECT_EQ(Tokenizer::load(golden("qwen")).processing_fingerprint(), expected);

  // The processing of a tokenizer.json that was changed; its vocabulary stays.
  const auto changed = [&](const std::string& name, auto change) {
    copy_golden("qwen", folder.path() / name);
    Json json = read_json(folder.path() / name / "tokenizer.json");
    change(json);
    write_file_atomically(folder.path() / name / "tokenizer.json", json.dump(1));
    const auto tokenizer = Tokenizer::load(folder.path() / name);
    EXPECT_EQ(tokenizer.vocabulary_fingerprint(), original.vocabulary_fingerprint());
    return tokenizer.processing_fingerprint();
  };

  // Normaliser, merges and pre-tokenizer count.
  EXPECT_EQ(changed("same", [](Json&) {}), expected);
  EXPECT_NE(changed("normalizer", [](Json& json) { json["normalizer"]["type"] = "NFD"; }),
            expected);
  EXPECT_NE(changed("merges",
                    [](Json& json) {
                      std::swap(json["model"]["merges"][0], json["model"]["merges"][1]);
                    }),
            expected);
  EXPECT_NE(changed("pieces", [](Json& json) { json["pre_tokenizer"]["pretokenizers"].erase(0); }),
            expected);

  // Merges as "a b" are the same merges as ["a", "b"].
  EXPECT_EQ(changed("old",
                    [](Json& json) {
                      for (auto& merge : json["model"]["merges"]) {
                        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
                      }
                    }),
            expected);

  // The chat template counts.
  copy_golden("qwen", folder.path() / "template");
  write_file_atomically(folder.path() / "template/chat_template.jinja", "{{ messages }}");
  EXPECT_NE(Tokenizer::load(folder.path() / "template").processing_fingerprint(), expected);
}

TEST(Tokenizer, SpecialTokensAreStringsOrObjects) {
  test::TemporaryFolder folder;
  copy_golden("gpt2", folder.path() / "a");
  const auto config = folder.path() / "a/tokenizer_config.json";
  write_file_atomically(
      config,
      R"({"eos_token": {"__type": "AddedToken", "content": "<|endoftext|>"}, "pad_token": null})");
  auto tokenizer = Tokenizer::load(folder.path() / "a");
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.token_to_id("<|endoftext|>"));
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_EQ(tokenizer.pad_id(), -1);
  std::filesystem::remove(config);
  tokenizer = Tokenizer::load(folder.path() / "a");
  EXPECT_EQ(tokenizer.eos_id(), -1);
  write_file_atomically(config, R"({"eos_token": ["x"]})");
  EXPECT_NE(test::message_of([&] { Tokenizer::load(folder.path() / "a"); }).find("eos_token"),
            std::string::npos);
}

}  // namespace
}  // namespace retort::models
