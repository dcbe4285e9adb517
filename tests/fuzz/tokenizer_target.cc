// Decodes: a model's tokenizer.json, and encodes a small text with what is taken.
// Holds: the ids are not negative, and offsets lie in the text.
#include "models/text/tokenizer.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/target_list.h"

namespace retort::fuzz::tokenizer {
namespace {

// The folder of a model, which goes with the process.
class ModelFolder {
 public:
  ModelFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("retort-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  const std::filesystem::path& with(std::string_view tokenizer_json) const {
    std::ofstream(path_ / "tokenizer.json", std::ios::binary) << tokenizer_json;
    return path_;
  }

 private:
  std::filesystem::path path_;
};

bool decode(std::string_view bytes) {
  static const ModelFolder folder;
  const models::Tokenizer tokenizer = models::Tokenizer::load(folder.with(bytes));
  const std::string text = "ab, \xc3\xa9 12  <s>ab\n";
  for (const int32_t id : tokenizer.encode(text, /*add_special_tokens=*/true))
    expect(id >= 0, "an id is negative");
  const auto encoded = tokenizer.encode_with_offsets(text, /*add_special_tokens=*/false);
  for (const auto& [begin, end] : encoded.offsets)
    expect(begin <= end && end <= text.size(), "an offset is outside of the text");
  tokenizer.decode(encoded.ids, /*skip_special_tokens=*/true);
  return true;
}

std::vector<Seed> seeds() {
  return {
      {"bpe",
       R"({"version": "1.0", "added_tokens": [{"id": 5, "content": "<s>", "special": true,
"single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace",
"pattern": {"String": "  "}, "content": " "}]},
"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+|\\d|[^\\s\\d]+"},
"behavior": "Isolated", "invert": false},
"decoder": {"type": "Fuse"}, "model": {"type": "BPE", "unk_token": "?", "vocab":
{"a": 0, "b": 1, "ab": 2, " ": 3, "?": 4}, "merges": [["a", "b"]]}})"},
      {"words",
       R"({"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "post_processor":
{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[C]", "type_id": 0}},
{"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"[C]": {"id": "[C]", "ids": [2],
"tokens": ["[C]"]}}}, "model": {"type": "WordLevel", "vocab": {"[U]": 0, "ab": 1, "[C]": 2},
"unk_token": "[U]"}})"},
      {"unigram",
       R"({"added_tokens": [], "normalizer": {"type": "Prepend", "prepend": "_"},
"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always",
"split": true}, "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
"vocab": [["<unk>", 0.0], ["_", -2.0], ["ab", -3.5], ["a", -4.0], ["b", -4.25]]}})"},
  };
}

}  // namespace

Target target() { return {"tokenizer", decode, seeds}; }

}  // namespace retort::fuzz::tokenizer
