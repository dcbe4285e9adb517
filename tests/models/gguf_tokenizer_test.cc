// Tokenizers in GGUF files: what llama.cpp is told, and which have no equal there.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "models/gguf/export_gguf.h"
#include "models/gguf/gguf_pre_tokenizer.h"
#include "models/gguf/gguf_tokenizer.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "tests/models/gguf_reader.h"
#include "tests/models/gguf_support.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using Strings = std::vector<std::string>;
using Numbers = std::vector<int32_t>;
using test::expect_refused;

std::filesystem::path text_golden(const std::string& name) {
  return test::source_folder() / "tests/text/goldens" / name;
}

ConfigJson tokenizer_json(const std::filesystem::path& folder) {
  return ConfigJson::parse(read_file(folder / "tokenizer.json"));
}

// The keys that add_gguf_tokenizer adds for an embedding of `rows`.
GgufFile described(const std::filesystem::path& folder, int64_t rows, ModelConfig config = {}) {
  config.vocab_size = rows;
  GgufMetadata metadata;
  add_gguf_tokenizer(folder, config, metadata);
  const test::TemporaryFolder output;
  GgufWriter writer(output / "model.gguf", metadata, {});
  writer.commit();
  return GgufFile(output / "model.gguf");
}

TEST(GgufTokenizer, TokensMergesAndSpecialIds) {
  const ExportableModel model("qwen2");  // 160 rows, 96 tokens
  export_gguf(model.path(), model.output());
  const GgufFile file(model.output());
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const auto tokens = file.get<Strings>("tokenizer.ggml.tokens");
  const auto types = file.get<Numbers>("tokenizer.ggml.token_type");
  ASSERT_EQ(tokens.size(), 160u);
  ASSERT_EQ(types.size(), 160u);

  for (int32_t id = 0; id < 160; ++id) {
    const auto at = static_cast<size_t>(id);
    EXPECT_EQ(tokens[at], id < 96 ? tokenizer.id_to_token(id) : "[PAD" + std::to_string(id) + "]");
    EXPECT_EQ(types[at], id < 3 ? 3 : id < 96 ? 1 : 5) << id;
  }
  EXPECT_EQ(file.get<Strings>("tokenizer.ggml.merges"), (Strings{"t h", "th e", "Ġ the", "i n"}));
  EXPECT_EQ(file.get<std::string>("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(file.get<std::string>("tokenizer.ggml.pre"), "qwen2");
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.bos_token_id"), 1u);
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.eos_token_id"), 2u);
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.padding_token_id"), 5u);  // of config.json
  EXPECT_FALSE(file.get<bool>("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(file.get<std::string>("tokenizer.chat_template"),
            ChatTemplate::load(model.path()).source());
}

TEST(GgufTokenizer, ATemplateForToolsHasAKeyOfItsOwn) {
  const ExportableModel model("llama3_rope");
  const auto folder = model.path() / "additional_chat_templates";
  write_file_atomically(model.path() / "chat_template.jinja", "D");
  std::filesystem::create_directory(folder);
  write_file_atomically(folder / "tool_use.jinja", "T");
  const GgufFile file = described(model.path(), 96, read_model_config(model.path()));
  EXPECT_EQ(file.get<std::string>("tokenizer.chat_template"), "D");
  EXPECT_EQ(file.get<Strings>("tokenizer.chat_templates"), Strings{"tool_use"});
  EXPECT_EQ(file.get<std::string>("tokenizer.chat_template.tool_use"), "T");
}

TEST(GgufTokenizer, SeveralEndTokensAndOneBeforeEveryText) {
  const ExportableModel model("llama3_rope");  // end tokens 2 and 3
  ConfigJson json = tokenizer_json(model.path());
  json["post_processor"] = ConfigJson::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}},
               {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})");
  write_file_atomically(model.path() / "tokenizer.json", json.dump());
  const GgufFile file = described(model.path(), 96, read_model_config(model.path()));
  EXPECT_TRUE(file.get<bool>("tokenizer.ggml.add_bos_token"));
  EXPECT_FALSE(file.get<bool>("tokenizer.ggml.add_eos_token"));
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.bos_token_id"), 1u);
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.eos_token_id"), 2u);
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.eot_token_id"), 3u);
}

TEST(GgufTokenizer, PreTokenizersByTheirLlamaCppNames) {
  const auto name = [](const std::filesystem::path& folder) {
    return gguf_pre_tokenizer(tokenizer_json(folder), "tokenizer.json");
  };
  EXPECT_EQ(name(text_golden("gpt2")), "gpt-2");
  EXPECT_EQ(name(text_golden("llama3")), "llama-bpe");
  EXPECT_EQ(name(text_golden("qwen")), "qwen2");
  const test::TemporaryFolder trained;
  train_tokenizer({"the student learns what the teacher knows"}, {.vocab_size = 270},
                  trained.path());
  EXPECT_EQ(name(trained.path()), "qwen35");

  // Llama 3's pieces without its rule for merges have another name; other pieces have none.
  ConfigJson json = tokenizer_json(text_golden("llama3"));
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(gguf_pre_tokenizer(json, "f"), "dbrx");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+";
  expect_refused("pre_tokenizer", [&] { gguf_pre_tokenizer(json, "f"); });
  json["pre_tokenizer"] = nullptr;
  expect_refused("pre_tokenizer", [&] { gguf_pre_tokenizer(json, "f"); });
}

TEST(GgufTokenizer, RefusesWhatHasNoEqual) {
  const auto refused = [](const std::filesystem::path& folder, const std::string& part) {
    expect_refused(part, [&] { described(folder, 100000); });
  };
  refused(test::source_folder() / "tests/recipes/goldens/qwen2", "'WordLevel'");
  refused(text_golden("unigram"), "'Unigram'");
  refused(text_golden("llama2"), "byte_fallback");
  test::expect_error(ErrorCode::kMismatch, "95 rows",
                     [] { described(golden_folder("tokenizer"), 95); });

  // One change each of a tokenizer that is fine.
  const auto changed = [](const std::function<void(ConfigJson&)>& change, const std::string& part) {
    const ExportableModel model("llama");
    ConfigJson json = tokenizer_json(model.path());
    change(json);
    write_file_atomically(model.path() / "tokenizer.json", json.dump());
    expect_refused(part, [&] { described(model.path(), 96); });
  };
  changed([](ConfigJson& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "Lowercase");
  changed([](ConfigJson& j) { j["added_tokens"][0]["lstrip"] = true; }, "lstrip");
  changed([](ConfigJson& j) { j["model"]["dropout"] = 0.1; }, "model.dropout");

  // Without an end token llama.cpp would end at its default one.
  const ExportableModel model("llama");
  write_file_atomically(model.path() / "tokenizer_config.json", "{}");
  refused(model.path(), "end token");
}

}  // namespace
}  // namespace retort::models
