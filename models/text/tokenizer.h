// Fast tokenizers (tokenizer.json) through the Rust crate `tokenizers`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace retort::models {

// Immutable after load; encode and decode may be called from any thread.
class Tokenizer {
 public:
  // Reads tokenizer.json and, for special tokens, tokenizer_config.json / special_tokens_map.json.
  // kInvalidArgument naming the file. Warns where tokenizer_class is Llama's and transformers 5
  // would put its own normaliser and pre-tokenizer in the place of tokenizer.json's.
  static Tokenizer load(const std::filesystem::path& folder);

  // add_special_tokens: what the post-processor adds (BOS, ...). Special tokens in the text are
  // recognised.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  struct Encoding {
    std::vector<int32_t> ids;
    std::vector<std::pair<uint32_t, uint32_t>> offsets;  // byte range of each token in the text
  };
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  struct Token {
    int32_t id = 0;
    std::string text;         // as the vocabulary spells it
    bool is_special = false;  // added, with the flag `special`
  };
  std::vector<Token> vocabulary() const;              // by id, added tokens too; a copy of all
  std::string id_to_token(int32_t id) const;          // "" if unknown
  int32_t token_to_id(std::string_view token) const;  // -1 if unknown

  int64_t vocab_size() const;  // highest id + 1, added tokens included
  int32_t eos_id() const;      // -1 if none
  int32_t bos_id() const;
  int32_t pad_id() const;
  const std::filesystem::path& folder() const;

  // Hash of the sorted (id, token bytes, special flag) entries with id < limit (limit <= 0: all).
  // Two tokenizers agree on the ids both know when their fingerprints at the smaller vocab_size()
  // agree.
  std::string vocabulary_fingerprint(int64_t limit = 0) const;
  // Hash of merges, normaliser, pre-tokenizer and chat template: a difference is a warning, not an
  // error.
  std::string processing_fingerprint() const;

 private:
  struct Impl;
  static void warn_of_class(const Impl& impl);
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

struct TokenizerTrainOptions {
  int64_t vocab_size = 4096;
  std::vector<std::string> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
};
// Trains a byte-level BPE on the texts and writes tokenizer.json, tokenizer_config.json (with a
// ChatML template that has {% generation %} marks), special_tokens_map.json into `folder`;
// transformers' AutoTokenizer opens it. Deterministic.
void train_tokenizer(const std::vector<std::string>& texts, const TokenizerTrainOptions& options,
                     const std::filesystem::path& folder);

}  // namespace retort::models
