// New tokens at the end of a vocabulary: in the tokenizer's files, and as rows of the embedding and
// of the head.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace retort::models {

enum class TokenInit : uint8_t {
  kMean,    // the mean of the rows of the tokens that a description is cut into
  kCopy,    // the row of a token that is there
  kZero,    // zeros
  kRandom,  // N(0, initializer_range), a function of the seed and the id
};

struct AddTokensOptions {
  std::vector<std::string> tokens;
  bool special = false;  // not part of a text: skipped where text is decoded without them
  TokenInit init = TokenInit::kMean;
  // kMean: the description, as the tokenizer cuts it so far; "": each token's own text.
  // kCopy: the token. Otherwise empty.
  std::string from;
  uint64_t seed = 0;
};

struct AddTokensSummary {
  int64_t num_added = 0;   // those that the tokenizer had already are passed over
  int64_t first_id = 0;    // of the new ones, which follow one another
  int64_t vocab_size = 0;  // rows of the embedding now: no fewer than before
};

// The model of `source` with the tokens in `folder`, which must exist. Ids go on from the highest
// that the tokenizer has; rows of the embedding that were there for no token (padding) are used
// first.
// Errors: kInvalidArgument for tokens that are empty, a `from` that says nothing here or no token;
// as rewrite_checkpoint.
AddTokensSummary add_tokens(const std::filesystem::path& source,
                            const std::filesystem::path& folder, const AddTokensOptions& options);

}  // namespace retort::models
