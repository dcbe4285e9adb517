#include "models/text/append_tokens.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;
using TokenizerJson = nlohmann::ordered_json;  // keeps the order of the keys

TokenizerJson read_tokenizer_json(const fs::path& file) {
  TokenizerJson json = TokenizerJson::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw Error(ErrorCode::kInvalidArgument, file.string() + ": not a JSON object")
        .with("file", file.string());
  return json;
}

void write_tokenizer_json(const fs::path& file, const TokenizerJson& json) {
  write_file_atomically(file, json.dump(2, ' ', /*ensure_ascii=*/false) + "\n");
}

// As tokenizer.json and tokenizer_config.json describe an added token, but for its id.
TokenizerJson added_token(const std::string& text, bool special) {
  return {{"content", text}, {"single_word", false},   {"lstrip", false},
          {"rstrip", false}, {"normalized", !special}, {"special", special}};
}

}  // namespace

void append_tokens(const fs::path& folder, const std::vector<std::string>& tokens, int64_t first_id,
                   bool special) {
  if (tokens.empty()) return;
  const auto for_each = [&](const auto& add) {
    for (size_t i = 0; i < tokens.size(); ++i)
      add(first_id + static_cast<int64_t>(i), tokens[i]);
  };

  // The file that is read here, and by transformers.
  const fs::path main = folder / "tokenizer.json";
  TokenizerJson json = read_tokenizer_json(main);
  TokenizerJson& list = json["added_tokens"];
  if (list.is_null()) list = TokenizerJson::array();
  if (!list.is_array())
    throw Error(ErrorCode::kInvalidArgument, main.string() + ": added_tokens is no list")
        .with("file", main.string());
  for_each([&](int64_t id, const std::string& text) {
    TokenizerJson entry{{"id", id}};
    entry.update(added_token(text, special));
    list.push_back(std::move(entry));
  });
  write_tokenizer_json(main, json);

  // Those that repeat it.
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config)) {
    TokenizerJson settings = read_tokenizer_json(config);
    if (settings.contains("added_tokens_decoder")) {
      for_each([&](int64_t id, const std::string& text) {
        settings["added_tokens_decoder"][std::to_string(id)] = added_token(text, special);
      });
      write_tokenizer_json(config, settings);
    }
  }
  const fs::path older = folder / "added_tokens.json";
  if (fs::exists(older)) {
    TokenizerJson ids = read_tokenizer_json(older);
    for_each([&](int64_t id, const std::string& text) { ids[text] = id; });
    write_tokenizer_json(older, ids);
  }
}

}  // namespace retort::models
