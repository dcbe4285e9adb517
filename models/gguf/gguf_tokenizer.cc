#include "models/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "models/config/config_fields.h"
#include "models/gguf/gguf_pre_tokenizer.h"
#include "models/text/chat_template.h"
#include "models/text/end_tokens.h"
#include "models/text/tokenizer.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

// These are the numbers of the format for the types of tokens.
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

Error refusal(const std::string& origin, const std::string& key, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument,
               origin + ": llama.cpp has no equal of this tokenizer: " + what)
      .with("file", origin)
      .with("key", key);
}

bool is_set(const ConfigJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() && *found != "" && *found != false;
}

// Takes byte-level BPE alone; whatever else would change its pieces is refused by name.
void check_model(const ConfigJson& tokenizer, const std::string& origin) {
  const ConfigJson model = tokenizer.value("model", ConfigJson::object());
  const std::string type = model.value("type", "");
  if (type != "BPE")
    throw refusal(origin, "model.type", "its model is '" + type + "', not a byte-level BPE");
  for (const char* key :
       {"byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_set(model, key))
      throw refusal(origin, std::string("model.") + key,
                    "model." + std::string(key) + " is set, so it is not a plain byte-level BPE");
  }

  // Text in another normal form than NFC is cut differently there, which its own converter accepts.
  const ConfigJson normalizer = tokenizer.value("normalizer", ConfigJson());
  if (!normalizer.is_null() && normalizer.value("type", "") != "NFC")
    throw refusal(origin, "normalizer", "its normalizer is " + normalizer.dump());
  for (const ConfigJson& token : tokenizer.value("added_tokens", ConfigJson::array())) {
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      if (is_set(token, key))
        throw refusal(origin, key,
                      "the added token " + token.value("content", ConfigJson()).dump() + " has " +
                          key + ": true");
    }
  }
}

std::vector<std::string> read_merges(const ConfigJson& model, const std::string& origin) {
  std::vector<std::string> merges;
  for (const ConfigJson& merge : model.value("merges", ConfigJson::array())) {
    // Older files write the two parts in one string.
    std::string text = merge.is_array()
                           ? merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>()
                           : merge.get<std::string>();
    if (std::count(text.begin(), text.end(), ' ') != 1)
      throw refusal(origin, "model.merges", "the merge " + merge.dump() + " is not of two tokens");
    merges.push_back(std::move(text));
  }
  return merges;
}

struct TokenList {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

// Finds the type of a token from what the tokenizer does with it: special tokens vanish where they
// are told to.
int32_t type_of(const Tokenizer& tokenizer, const ConfigJson& vocabulary,
                const std::set<std::string>& added, int32_t id, const std::string& text) {
  const std::vector<int32_t> one{id};
  if (tokenizer.decode(one, true).empty() && !tokenizer.decode(one, false).empty()) return kControl;
  const bool learnt = vocabulary.contains(text) && !added.contains(text);
  return learnt ? kNormal : kUserDefined;
}

TokenList read_tokens(const ConfigJson& json, const Tokenizer& tokenizer, int64_t num_rows) {
  std::set<std::string> added;
  for (const ConfigJson& token : json.value("added_tokens", ConfigJson::array()))
    added.insert(token.at("content").get<std::string>());
  const ConfigJson& vocabulary = json.at("model").at("vocab");

  // Tokens that stand in the tokenizer's other files alone are asked for, too.
  TokenList list;
  std::set<std::string> seen;
  for (int64_t id = 0; id < num_rows; ++id) {
    std::string text;
    if (id < tokenizer.vocab_size()) text = tokenizer.id_to_token(static_cast<int32_t>(id));
    const bool unused = text.empty();
    if (unused) text = "[PAD" + std::to_string(id) + "]";
    if (!seen.insert(text).second)
      throw Error(ErrorCode::kMismatch, "two tokens have the text '" + text + "'").with("id", id);
    list.types.push_back(
        unused ? kUnused : type_of(tokenizer, vocabulary, added, static_cast<int32_t>(id), text));
    list.texts.push_back(std::move(text));
  }
  return list;
}

// Returns the token before and the token after every text; -1 for none.
std::pair<int32_t, int32_t> ends_of_a_text(const Tokenizer& tokenizer) {
  const std::vector<int32_t> plain = tokenizer.encode("a", false);
  const std::vector<int32_t> whole = tokenizer.encode("a", true);
  const auto at = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  const auto before = at - whole.begin();
  const auto after = static_cast<std::ptrdiff_t>(whole.size() - plain.size()) - before;
  if (plain.empty() || at == whole.end() || before > 1 || after > 1) {
    throw refusal(tokenizer.folder() / "tokenizer.json", "post_processor",
                  "its post-processor adds more than one token before and one after a text");
  }
  return {before == 1 ? whole.front() : -1, after == 1 ? whole.back() : -1};
}

// `after`: the token that the post-processor adds, -1 for none.
void add_end_tokens(const ModelConfig& config, const Tokenizer& tokenizer, int32_t after,
                    GgufMetadata& metadata) {
  // The end tokens of the tokenizer come first; without any, llama.cpp would take the token 11.
  const std::string origin = tokenizer.folder() / "tokenizer.json";
  std::vector<int64_t> ends = end_token_ids(config, tokenizer);
  if (ends.empty())
    throw refusal(origin, "eos_token", "neither it nor config.json names an end token");
  const auto own = std::find(ends.begin(), ends.end(), tokenizer.eos_id());
  if (own != ends.end()) std::rotate(ends.begin(), own, own + 1);
  if (after >= 0 && after != ends.front())
    throw refusal(origin, "post_processor", "it adds another token after a text than eos_token");

  // llama.cpp has three places for end tokens.
  constexpr const char* kKeys[] = {"eos", "eot", "eom"};
  for (size_t i = 0; i < ends.size(); ++i) {
    if (i < std::size(kKeys)) {
      metadata.add(std::string("tokenizer.ggml.") + kKeys[i] + "_token_id",
                   static_cast<uint32_t>(ends[i]));
    } else {
      RETORT_LOG(kWarning) << "llama.cpp has room for three end tokens; it will not end at the "
                              "token id="
                           << ends[i];
    }
  }
}

void add_special_ids(const ModelConfig& config, const Tokenizer& tokenizer,
                     GgufMetadata& metadata) {
  const auto [before, after] = ends_of_a_text(tokenizer);
  metadata.add("tokenizer.ggml.add_bos_token", before >= 0);
  metadata.add("tokenizer.ggml.add_eos_token", after >= 0);
  add_end_tokens(config, tokenizer, after, metadata);

  // What stands before a text is its beginning, whatever it is called.
  const int64_t named = tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : config.bos_token_id;
  const int64_t begin = before >= 0 ? before : named;
  const int64_t padding = tokenizer.pad_id() >= 0 ? tokenizer.pad_id() : config.pad_token_id;
  if (begin >= 0) metadata.add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(begin));
  if (padding >= 0) metadata.add("tokenizer.ggml.padding_token_id", static_cast<uint32_t>(padding));
}

}  // namespace

void add_gguf_tokenizer(const fs::path& folder, const ModelConfig& config, GgufMetadata& metadata) {
  const std::string origin = (folder / "tokenizer.json").string();
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const ConfigJson json = parse_config_object(read_file(origin), origin);
  check_model(json, origin);
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw Error(ErrorCode::kMismatch, origin + ": the tokenizer has " +
                                          std::to_string(tokenizer.vocab_size()) +
                                          " tokens, the embedding of config.json " +
                                          std::to_string(config.vocab_size) + " rows")
        .with("file", origin);
  }

  // "gpt2" is llama.cpp's name for byte-level BPE.
  const TokenList tokens = read_tokens(json, tokenizer, config.vocab_size);
  metadata.add("tokenizer.ggml.model", "gpt2");
  metadata.add("tokenizer.ggml.pre", gguf_pre_tokenizer(json, origin));
  metadata.add("tokenizer.ggml.tokens", tokens.texts);
  metadata.add("tokenizer.ggml.token_type", tokens.types);
  metadata.add("tokenizer.ggml.merges", read_merges(json.at("model"), origin));
  add_special_ids(config, tokenizer, metadata);

  const ChatTemplate chat = ChatTemplate::load(folder);
  if (!chat.source().empty()) metadata.add("tokenizer.chat_template", chat.source());
  // A template that has a name is written as llama.cpp's own conversion writes it.
  if (!chat.tool_use_source().empty()) {
    metadata.add("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
    metadata.add("tokenizer.chat_template.tool_use", chat.tool_use_source());
  }
}

}  // namespace retort::models
