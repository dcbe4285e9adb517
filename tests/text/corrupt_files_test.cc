// Damaged tokenizer files are refused with kInvalidArgument or work; they never end the process.
#include <sys/stat.h>

#include <random>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

class CorruptFiles : public testing::Test {
 protected:
  // Many files: without a sync of each.
  void write(const std::string& name, std::string_view content) { folder_.write(name, content); }
  const std::filesystem::path& path() const { return folder_.path(); }

  // Whether it loads; if so, it must survive use.
  bool loads() {
    try {
      const auto tokenizer = Tokenizer::load(path());
      try {
        const auto ids = tokenizer.encode("Some text, 12 é🙂 <s>", true);
        tokenizer.decode(ids, true);
        tokenizer.encode_with_offsets("more  text", false);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      }
      tokenizer.vocabulary_fingerprint();
      tokenizer.processing_fingerprint();
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find(path().string()), std::string::npos) << error.what();
      return false;
    }
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(CorruptFiles, ALackingFileIsNamed) {
  const auto load = [&] { Tokenizer::load(path()); };
  test::expect_error(ErrorCode::kInvalidArgument, "tokenizer.json", load);
  test::expect_error(ErrorCode::kInvalidArgument, path().string(), load);
}

// Opening it would wait until somebody writes into it.
TEST_F(CorruptFiles, APipeIsNoTokenizer) {
  ASSERT_EQ(::mkfifo((path() / "tokenizer.json").c_str(), 0600), 0);
  test::expect_error(ErrorCode::kInvalidArgument, "is not a regular file but a pipe",
                     [&] { Tokenizer::load(path()); });
}

TEST_F(CorruptFiles, RefusesWhatIsNoTokenizer) {
  for (
      const std::string content :
      {"", "{", "null", "[]", "{}", "\"text\"", "\xff\xfe", R"({"model": null})",
       R"({"model": {"type": "BPE"}})",
       R"({"version": "1.0", "added_tokens": [], "model": {"type": "BPE",)"
       R"( "vocab": {}, "merges": []}})",
       R"({"version": "1.0", "added_tokens": [], "model": {"type": "Nope", "vocab": {"a": 0}}})"}) {
    write("tokenizer.json", content);
    SCOPED_TRACE(content);
    EXPECT_FALSE(loads());
  }
  write("tokenizer.json", std::string(300000, '['));
  EXPECT_FALSE(loads());
}

TEST_F(CorruptFiles, RefusesBrokenParts) {
  const Json good = read_json(golden("llama3") / "tokenizer.json");
  const auto broken = [&](auto change) {
    Json json = good;
    change(json);
    write("tokenizer.json", json.dump());
    return !loads();
  };
  EXPECT_FALSE(broken([](Json&) {}));
  EXPECT_TRUE(broken([](Json& j) { j["model"]["merges"][0] = Json::array({"no such", "token"}); }));
  EXPECT_TRUE(broken([](Json& j) { j["model"]["merges"][0] = "one"; }));
  EXPECT_TRUE(broken([](Json& j) { j["model"]["vocab"]["a"] = -1; }));
  EXPECT_TRUE(broken([](Json& j) { j["model"]["vocab"]["zzz"] = 4294967295u; }));
  EXPECT_TRUE(broken([](Json& j) { j["model"]["vocab"] = Json::array(); }));
  EXPECT_TRUE(broken([](Json& j) { j["pre_tokenizer"]["type"] = "Nothing"; }));
  EXPECT_TRUE(
      broken([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(["; }));
  EXPECT_TRUE(broken([](Json& j) { j["added_tokens"][0]["id"] = "x"; }));
  EXPECT_TRUE(broken([](Json& j) { j["decoder"] = 5; }));
}

// What makes 1,000 letters of one, four times, would take terabytes: already for its own tokens.
TEST_F(CorruptFiles, RefusesWhatMakesATextTooLong) {
  const Json good = read_json(golden("llama2") / "tokenizer.json");
  const std::string many(1000, 'a');
  const auto replacing = [&](const std::string& key, const std::string& inside, int times) {
    Json json = good;
    json[key] = {{"type", "Sequence"}, {inside, Json::array()}};
    for (int i = 0; i < times; ++i)
      json[key][inside].push_back(
          {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", many}});
    write("tokenizer.json", json.dump());
  };
  const auto load = [&] { Tokenizer::load(path()); };
  replacing("normalizer", "normalizers", 4);
  test::expect_error(ErrorCode::kInvalidArgument, "the normalizer may make a text", load);
  replacing("decoder", "decoders", 4);
  test::expect_error(ErrorCode::kInvalidArgument, "the decoder may make a text", load);
  replacing("normalizer", "normalizers", 0);
  EXPECT_TRUE(loads());
}

TEST_F(CorruptFiles, RefusesBrokenConfiguration) {
  std::filesystem::copy_file(golden("gpt2") / "tokenizer.json", path() / "tokenizer.json");
  for (const char* content :
       {"", "[", "[]", R"({"eos_token": 5})", R"({"eos_token": {"text": "x"}})",
        R"({"added_tokens_decoder": []})", R"({"added_tokens_decoder": {"one": {"content": "x"}}})",
        R"({"additional_special_tokens": 1})",
        R"({"added_tokens_decoder": {"1": {"content": "x", "special": "y"}}})",
        R"({"clean_up_tokenization_spaces": "yes"})", R"({"chat_template": {}})"}) {
    write("tokenizer_config.json", content);
    SCOPED_TRACE(content);
    EXPECT_FALSE(loads());
  }
  write("tokenizer_config.json", "{}");
  EXPECT_TRUE(loads());
  write("special_tokens_map.json", "nonsense");
  EXPECT_FALSE(loads());
}

TEST_F(CorruptFiles, SurvivesTruncationAtEveryHundredthByte) {
  for (const char* kind : {"mistral", "unigram"}) {
    const std::string good = read_file(golden(kind) / "tokenizer.json");
    for (size_t size = 0; size + 2 < good.size(); size += good.size() / 100) {
      write("tokenizer.json", std::string_view(good).substr(0, size));
      EXPECT_FALSE(loads()) << kind << " " << size;
    }
  }
}

// Replaces a random value anywhere in the document by something of another kind or size.
void mutate(Json& json, std::mt19937& random) {
  Json* at = &json;
  while (at->is_structured() && !at->empty() && random() % 8 != 0) {
    auto it = at->begin();
    std::advance(it, random() % at->size());
    at = &*it;
  }
  static const Json kValues[] = {nullptr,       true,          -1, 0, 1e300, 4294967296u, "", "é",
                                 Json::array(), Json::object()};
  *at = kValues[random() % std::size(kValues)];
}

TEST_F(CorruptFiles, SurvivesRandomDamage) {
  std::mt19937 random(20261);
  int refused = 0;
  int accepted = 0;
  for (const char* kind : {"gpt2", "llama3", "llama2", "wordpiece", "unigram"}) {
    const Json good = read_json(golden(kind) / "tokenizer.json");
    const std::string text = good.dump();
    for (int round = 0; round < 40; ++round) {
      Json json = good;
      mutate(json, random);
      write("tokenizer.json", json.dump());
      (loads() ? accepted : refused)++;
      std::string bytes = text;
      for (int i = 0; i < 3; ++i)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      write("tokenizer.json", bytes);
      (loads() ? accepted : refused)++;
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(accepted, 5);  // some damage is a valid tokenizer, and that one must work
}

TEST_F(CorruptFiles, DamagedTemplatesNeverEndTheProcess) {
  std::mt19937 random(7);
  const char* messages =
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])";
  const std::string parts[] = {
      "{%", "%}", "{{", "}}", "{#", "#}", "'", "-%}", "{% raw %}", "{% generation %}", "\n"};
  for (const Json chats = read_json(golden("chats.json"))["chats"]; const auto& chat : chats) {
    const std::string good = chat["template"];
    for (int round = 0; round < 40; ++round) {
      std::string source = good;
      const size_t at = random() % source.size();
      source.replace(at, random() % 8, parts[random() % std::size(parts)]);
      try {
        const auto made = ChatTemplate::from_source(source, "B", "E");
        made.render(messages, true);
        made.render("[{\"role\": 1}]", false);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << source;
      }
    }
  }
}

}  // namespace
}  // namespace retort::models
