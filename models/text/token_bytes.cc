#include "models/text/token_bytes.h"

#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "models/text/detail/rust_call.h"
#include "models/text/detail/unicode.h"

namespace retort::models {
namespace {

using Json = nlohmann::json;

// How the tokens of a tokenizer are spelled.
struct Spelling {
  bool is_byte_level = false;
  std::string space = "▁";      // sentencepiece's kind alone
  bool has_fallback = false;    // <0x0A> is a byte
  std::set<std::string> added;  // those that tokenizer.json and tokenizer_config.json list
};

// All of tokenizer.json but its model, which has megabytes of tokens and merges.
Json without_model(const std::string& json) {
  const auto keep = [](int depth, Json::parse_event_t event, Json& parsed) {
    return !(depth == 1 && event == Json::parse_event_t::key && parsed == "model");
  };
  return Json::parse(json, keep, /*allow_exceptions=*/false);
}

std::string text_at(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Json part_of(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() ? *found : Json();
}

// The steps of a decoder or pre-tokenizer, those of a Sequence one by one.
std::vector<Json> steps_of(const Json& part, const char* list) {
  std::vector<Json> steps;
  if (text_at(part, "type") != "Sequence") {
    steps.push_back(part);
    return steps;
  }
  for (const Json& step : part_of(part, list))
    for (Json& inner : steps_of(step, list))
      steps.push_back(std::move(inner));
  return steps;
}

// Reads the kind off the steps that lead from tokens back to a text; none: neither kind.
std::optional<Spelling> spelling_of(const Json& tokenizer) {
  const Json decoder = part_of(tokenizer, "decoder");
  const std::vector<Json> steps =
      decoder.is_null() ? steps_of(part_of(tokenizer, "pre_tokenizer"), "pretokenizers")
                        : steps_of(decoder, "decoders");
  Spelling spelling;
  bool is_pieces = false;
  for (const Json& step : steps) {
    const std::string type = text_at(step, "type");
    if (type == "ByteLevel") spelling.is_byte_level = true;
    if (type == "ByteFallback") is_pieces = spelling.has_fallback = true;
    if (type == "Metaspace") {
      is_pieces = true;
      const std::string mark = text_at(step, "replacement");
      if (!mark.empty()) spelling.space = mark;
    }
    if (type == "Replace" && text_at(step, "content") == " ") {
      const std::string mark = text_at(part_of(step, "pattern"), "String");
      if (mark.empty()) continue;
      is_pieces = true;
      spelling.space = mark;
    }
  }
  if (!spelling.is_byte_level && !is_pieces) return std::nullopt;
  return spelling;
}

std::set<std::string> added_tokens(const Json& tokenizer, const std::filesystem::path& folder) {
  std::set<std::string> added;
  for (const Json& token : part_of(tokenizer, "added_tokens"))
    added.insert(text_at(token, "content"));

  // The configuration lists some that tokenizer.json lacks, which Tokenizer::load adds.
  const auto config = detail::read_if_exists(folder / "tokenizer_config.json");
  if (!config) return added;
  const Json parsed = Json::parse(*config, nullptr, /*allow_exceptions=*/false);
  for (const Json& token : part_of(parsed, "added_tokens_decoder"))
    added.insert(text_at(token, "content"));
  return added;
}

// GPT-2's alphabet: the byte of each character, -1 for one that is not in it. Bytes that print
// stand for themselves, the others for characters from U+0100 on, in their order.
constexpr size_t kAlphabetEnd = 0x144;
using Alphabet = std::array<int16_t, kAlphabetEnd>;
Alphabet make_alphabet() {
  Alphabet byte_of;
  byte_of.fill(-1);
  size_t next = 0x100;
  for (int16_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    byte_of[prints ? static_cast<size_t>(byte) : next++] = byte;
  }
  return byte_of;
}

// The bytes that a token is spelled with; one with other characters stands for itself, as for the
// decoder.
std::string byte_level_bytes(const std::string& token, const Alphabet& alphabet) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    // The alphabet has characters of one and of two bytes alone.
    const uint8_t lead = static_cast<uint8_t>(token[i]);
    const bool two = (lead & 0xE0) == 0xC0 && i + 1 < token.size();
    if (lead >= 0x80 && !two) return token;
    const size_t point = two ? (lead & 0x1Fu) << 6 | (token[i + 1] & 0x3Fu) : lead;
    if (point >= alphabet.size() || alphabet[point] < 0) return token;
    bytes += static_cast<char>(alphabet[point]);
    i += two ? 2 : 1;
  }
  return bytes;
}

// <0x0A>: the byte; none for another spelling.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const auto value = detail::hex_value(token.substr(3, 2), 2);
  if (!value) return std::nullopt;
  return static_cast<char>(*value);
}

std::string with_spaces(std::string_view token, const std::string& mark) {
  std::string bytes;
  while (true) {
    const size_t at = token.find(mark);
    bytes += token.substr(0, at);
    if (at == token.npos) return bytes;
    bytes += ' ';
    token.remove_prefix(at + mark.size());
  }
}

Spelling read_spelling(const std::filesystem::path& folder) {
  const Json tokenizer = without_model(read_file(folder / "tokenizer.json"));
  std::optional<Spelling> spelling = spelling_of(tokenizer);
  if (!spelling) {
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() +
                    ": the tokens of this tokenizer do not say where spaces were (its decoder is " +
                    part_of(tokenizer, "decoder").dump() +
                    "), so they cannot be compared with those of another tokenizer; use a model "
                    "with a byte-level tokenizer (GPT-2, Llama 3, Qwen) or one of sentencepiece's "
                    "kind (Llama 2, Mistral, Gemma)");
  }
  spelling->added = added_tokens(tokenizer, folder);
  return *std::move(spelling);
}

}  // namespace

TokenBytes::TokenBytes(const Tokenizer& tokenizer) {
  const Spelling spelling = read_spelling(tokenizer.folder());
  const Alphabet alphabet = make_alphabet();
  begin_.push_back(0);
  for (const Tokenizer::Token& token : tokenizer.vocabulary()) {
    const auto byte = spelling.has_fallback ? fallback_byte(token.text) : std::nullopt;
    if (token.is_special) {
      append(token.id, token.text, kSpecial);
    } else if (spelling.is_byte_level) {
      const bool is_added = spelling.added.contains(token.text);
      append(token.id, is_added ? token.text : byte_level_bytes(token.text, alphabet), 0);
    } else if (byte) {
      append(token.id, std::string_view(&*byte, 1), kFallback);
    } else {
      append(token.id, with_spaces(token.text, spelling.space), 0);
    }
  }
}

// Ids that are left out have no bytes. Two tokens of one id are a mistake of the file: the first
// counts.
void TokenBytes::append(int32_t id, std::string_view bytes, uint8_t flags) {
  if (id < size()) return;
  begin_.resize(static_cast<size_t>(id) + 1, static_cast<uint32_t>(bytes_.size()));
  flags_.resize(static_cast<size_t>(id), 0);
  bytes_ += bytes;
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  flags_.push_back(flags);
}

std::string_view TokenBytes::of(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const size_t begin = begin_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(begin, begin_[static_cast<size_t>(id) + 1] - begin);
}

bool TokenBytes::has(int32_t id, Flag flag) const {
  return id >= 0 && id < size() && (flags_[static_cast<size_t>(id)] & flag) != 0;
}

bool TokenBytes::is_special(int32_t id) const { return has(id, kSpecial); }
bool TokenBytes::is_fallback(int32_t id) const { return has(id, kFallback); }
int64_t TokenBytes::size() const { return static_cast<int64_t>(flags_.size()); }

}  // namespace retort::models
