// Where transformers 5 makes another tokenizer of a folder by its tokenizer_class, a warning says
// so; the ids are those of tokenizer.json.
#include <gtest/gtest.h>

#include "models/text/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

class TokenizerClass : public testing::Test {
 protected:
  // What is logged when the golden tokenizer is loaded with these settings.
  std::string logged(const std::string& name, const std::string& config,
                     const std::string& model = "") {
    std::filesystem::copy_file(golden(name) / "tokenizer.json", folder_.path() / "tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
    write_file_atomically(folder_.path() / "tokenizer_config.json", config);
    if (!model.empty()) write_file_atomically(folder_.path() / "config.json", model);
    testing::internal::CaptureStderr();
    const auto tokenizer = Tokenizer::load(folder_.path());
    const std::string log = testing::internal::GetCapturedStderr();
    const auto own = Tokenizer::load(golden(name));
    for (const char* text : {" The cat sat.", "The cat  sat.\n two", "</s> The cat"})
      EXPECT_EQ(tokenizer.encode(text, false), own.encode(text, false)) << text;
    return log;
  }

  test::TemporaryFolder folder_;
};

TEST_F(TokenizerClass, LlamasIsWarnedOfWhereItDiffers) {
  // A normalizer that prepends, where transformers 5 has a Metaspace.
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast"}) {
    const auto log = logged("llama2", std::string(R"({"tokenizer_class": ")") + name + "\"}");
    EXPECT_NE(log.find(name), std::string::npos) << log;
    EXPECT_NE(log.find("prepend_scheme first"), std::string::npos) << log;
    EXPECT_NE(log.find(folder_.path().string()), std::string::npos) << log;
  }
  EXPECT_NE(logged("llama2", R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})")
                .find("prepend_scheme always"),
            std::string::npos);
  EXPECT_NE(logged("mistral", R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false})")
                .find("prepend_scheme never"),
            std::string::npos);
  EXPECT_NE(logged("mistral", R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})")
                .find("prepend_scheme always"),
            std::string::npos);
}

TEST_F(TokenizerClass, NothingIsSaidWhereTheFileIsTaken) {
  EXPECT_EQ(logged("llama2", R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), "");
  EXPECT_EQ(logged("llama2", "{}"), "");
  EXPECT_EQ(logged("mistral", R"({"tokenizer_class": "LlamaTokenizer", "legacy": false})"), "")
      << "the Metaspace that transformers makes is the file's";
  EXPECT_EQ(logged("llama3", R"({"tokenizer_class": "LlamaTokenizer"})"), "") << "byte-level";
  EXPECT_EQ(
      logged("llama2", R"({"tokenizer_class": "LlamaTokenizer"})", R"({"model_type": "phi3"})"),
      "");
}

}  // namespace
}  // namespace retort::models
