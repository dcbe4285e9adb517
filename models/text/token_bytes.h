// What each token of a tokenizer stands for in a text, in bytes: by these alone tokens of two
// tokenizers can be compared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"

namespace retort::models {

// Two kinds of tokenizers say it by the spelling of their tokens, and are told apart by the
// "decoder" of tokenizer.json (where there is none, by its "pre_tokenizer"):
//
// - byte-level ones (GPT-2, Llama 3, Qwen): a letter is a byte, "Ġ" a space. Added tokens stand for
//   their content as it is.
// - those of sentencepiece's kind (Llama 2, Mistral, Gemma): "▁", or what the decoder puts a space
//   for, is a space, and <0x0A> a byte. Special tokens stand for their content as it is. Other
//   added tokens are read like the vocabulary, since Gemma's "▁▁" is what its model makes of two
//   spaces.
//
// A text is the bytes of its tokens, one behind the other, but for what the tokenizer changes
// before it splits: a normaliser (NFC), the space that sentencepiece puts before a text, and white
// space that an added token with lstrip or rstrip takes with it.
//
// Immutable; any thread. Memory: the bytes of the vocabulary and 5 bytes for each id.
class TokenBytes {
 public:
  // kInvalidArgument naming the folder for tokenizers of other kinds (WordPiece), whose tokens do
  // not say where spaces were.
  explicit TokenBytes(const Tokenizer& tokenizer);

  std::string_view of(int32_t id) const;  // "" for an id without a token, also a negative one
  // An added token with the flag special: the end of a turn, of a text, ...
  bool is_special(int32_t id) const;
  // A byte of sentencepiece's (<0x41>), which its model takes only for characters without a token.
  bool is_fallback(int32_t id) const;
  int64_t size() const;  // highest id + 1

 private:
  enum Flag : uint8_t { kSpecial = 1, kFallback = 2 };
  bool has(int32_t id, Flag flag) const;
  void append(int32_t id, std::string_view bytes, uint8_t flags);

  std::string bytes_;            // of all tokens, by id
  std::vector<uint32_t> begin_;  // of each id in bytes_, and the end of the last
  std::vector<uint8_t> flags_;
};

}  // namespace retort::models
