#include "models/add_tokens.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/rewrite_checkpoint.h"
#include "models/config/config.h"
#include "models/text/tokenizer.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

Error bad(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

// Returns the tokens that the tokenizer does not have, each once, in their order.
std::vector<std::string> missing_tokens(const Tokenizer& tokenizer,
                                        const std::vector<std::string>& tokens) {
  std::vector<std::string> missing;
  std::set<std::string> seen;
  for (const std::string& token : tokens) {
    if (token.empty()) throw bad("a new token must have at least one character");
    if (tokenizer.token_to_id(token) < 0 && seen.insert(token).second) missing.push_back(token);
  }
  return missing;
}

// Finds the old rows whose mean a new row is, for each new token. An empty list stands for a row
// that is made of no old one.
std::vector<std::vector<int64_t>> rows_of_tokens(const Tokenizer& tokenizer,
                                                 const std::vector<std::string>& tokens,
                                                 const AddTokensOptions& options) {
  std::vector<std::vector<int64_t>> rows(tokens.size());
  if (options.init == TokenInit::kZero || options.init == TokenInit::kRandom) {
    if (!options.from.empty()) throw bad("rows of zeros or at random are made from no token");
    return rows;
  }
  if (options.init == TokenInit::kCopy) {
    const int32_t id = options.from.empty() ? -1 : tokenizer.token_to_id(options.from);
    if (id < 0)
      throw bad("'" + options.from + "' is no token of the tokenizer, whose row could be copied");
    for (std::vector<int64_t>& row : rows)
      row = {id};
    return rows;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& text = options.from.empty() ? tokens[i] : options.from;
    const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
    if (ids.empty()) throw bad("the description '" + text + "' has no token");
    rows[i].assign(ids.begin(), ids.end());
  }
  return rows;
}

// Draws the row of an id from the seed by Box-Muller, with two uniform numbers for each element.
Tensor random_row(int64_t width, double deviation, uint64_t seed, int64_t id) {
  Tensor row = at::empty({width}, at::TensorOptions().dtype(at::kFloat));
  auto* out = row.mutable_data_ptr<float>();
  const auto key = static_cast<uint64_t>(id);
  for (int64_t i = 0; i < width; ++i) {
    const auto at = 2 * static_cast<uint64_t>(i);
    const double radius = std::sqrt(-2.0 * std::log(random_uniform(seed, key, at)));
    const double angle = 2.0 * std::numbers::pi * random_uniform(seed, key, at + 1);
    out[i] = static_cast<float>(deviation * radius * std::cos(angle));
  }
  return row;
}

// Makes the new rows of a table of the vocabulary, the same way for each table.
class NewRows {
 public:
  NewRows(const ModelConfig& config, int64_t first_id, std::vector<std::vector<int64_t>> sources,
          const AddTokensOptions& options)
      : config_(config), first_id_(first_id), sources_(std::move(sources)), options_(options) {}

  // Returns `table` [V, H] with the new rows, [config.vocab_size, H], in fp32.
  Tensor with(const Tensor& table) const {
    const Tensor old = table.to(at::kFloat);
    const int64_t more = config_.vocab_size - old.size(0);
    Tensor grown = at::cat({old, at::zeros({more, old.size(1)}, old.options())});
    for (size_t i = 0; i < sources_.size(); ++i) {
      const int64_t id = first_id_ + static_cast<int64_t>(i);
      grown.select(0, id).copy_(row(old, sources_[i], id));
    }
    return grown;
  }

 private:
  Tensor row(const Tensor& old, const std::vector<int64_t>& source, int64_t id) const {
    if (options_.init == TokenInit::kZero) return at::zeros({old.size(1)}, old.options());
    if (options_.init == TokenInit::kRandom)
      return random_row(old.size(1), config_.initializer_range, options_.seed, id);
    Tensor sum = at::zeros({old.size(1)}, old.options());
    for (const int64_t token : source)
      sum += old.select(0, token);
    return sum / static_cast<double>(source.size());
  }

  const ModelConfig& config_;
  int64_t first_id_;
  std::vector<std::vector<int64_t>> sources_;
  const AddTokensOptions& options_;
};

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

// Describes an added token as tokenizer.json and tokenizer_config.json do, but for its id.
TokenizerJson token_entry(const std::string& text, bool special) {
  return {{"content", text}, {"single_word", false},   {"lstrip", false},
          {"rstrip", false}, {"normalized", !special}, {"special", special}};
}

// Writes tokens with the ids first_id, first_id + 1, ... into tokenizer.json of `folder`, and into
// tokenizer_config.json (added_tokens_decoder) and added_tokens.json where these list added tokens.
// They are found before anything else is cut, `special` ones also before the text is normalised.
// kInvalidArgument naming the file for one that is no tokenizer's.
void append_tokens(const fs::path& folder, const std::vector<std::string>& tokens, int64_t first_id,
                   bool special) {
  if (tokens.empty()) return;
  const auto for_each = [&](const auto& add) {
    for (size_t i = 0; i < tokens.size(); ++i)
      add(first_id + static_cast<int64_t>(i), tokens[i]);
  };

  // This file is the one that is read here, and by transformers.
  const fs::path main = folder / "tokenizer.json";
  TokenizerJson json = read_tokenizer_json(main);
  TokenizerJson& list = json["added_tokens"];
  if (list.is_null()) list = TokenizerJson::array();
  if (!list.is_array())
    throw Error(ErrorCode::kInvalidArgument, main.string() + ": added_tokens is no list")
        .with("file", main.string());
  for_each([&](int64_t id, const std::string& text) {
    TokenizerJson entry{{"id", id}};
    entry.update(token_entry(text, special));
    list.push_back(std::move(entry));
  });
  write_tokenizer_json(main, json);

  // Other files repeat the list of added tokens, and must agree with it.
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config)) {
    TokenizerJson settings = read_tokenizer_json(config);
    if (settings.contains("added_tokens_decoder")) {
      for_each([&](int64_t id, const std::string& text) {
        settings["added_tokens_decoder"][std::to_string(id)] = token_entry(text, special);
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

}  // namespace

AddTokensSummary add_tokens(const fs::path& source, const fs::path& folder,
                            const AddTokensOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(source);
  const std::vector<std::string> tokens = missing_tokens(tokenizer, options.tokens);
  const int64_t first_id = tokenizer.vocab_size();
  const int64_t ids = first_id + static_cast<int64_t>(tokens.size());

  // Rows beyond the tokenizer's ids, which many models have, are used before new ones are made.
  RewriteOptions rewrite{.config = read_model_config(source)};
  ModelConfig& config = rewrite.config;
  config.vocab_size = std::max(config.vocab_size, ids);
  const NewRows rows(config, first_id, rows_of_tokens(tokenizer, tokens, options), options);
  rewrite.change = [&](const std::string& name, const Tensor& read) {
    const bool table = name == "model.embed_tokens.weight" || name == "lm_head.weight";
    return table ? rows.with(read) : read;
  };

  copy_tokenizer_files(source, folder);
  append_tokens(folder, tokens, first_id, options.special);
  rewrite_checkpoint(source, folder, rewrite);
  return {static_cast<int64_t>(tokens.size()), first_id, config.vocab_size};
}

}  // namespace retort::models
