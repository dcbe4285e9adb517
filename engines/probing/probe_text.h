// The tokens that a probe asks about.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/contract/engine.h"
#include "models/text/tokenizer.h"

namespace retort::engines {

// The length of a completion that is drawn after the text.
inline constexpr int64_t kProbeDrawnTokens = 16;

// Plain text in the tokenizer's ids, with a few ids in front of it that differ from probe to
// probe: whatever a server keeps of an earlier one begins with other ids.
class ProbeText {
 public:
  // context_tokens: of the engine; 0: unknown. kInvalidArgument when the tokenizer makes too few
  // tokens, or too few different ones, of the text, or the context is too small.
  ProbeText(const models::Tokenizer& tokenizer, int64_t context_tokens, uint64_t nonce);

  // A few ids by `number`, then the text: other numbers begin differently. Number 0 is the one
  // that all else is compared with.
  std::vector<int32_t> sequence(uint64_t number = 0) const;
  // The tokens that follow it in the text.
  const std::vector<int32_t>& continuation() const { return continuation_; }
  // The last positions of a sequence that have a given token, as the same tokens stand there.
  std::vector<int32_t> positions() const;

 private:
  std::vector<int32_t> text_, continuation_;
  uint64_t nonce_;
};

// Every id moved by `step` (1 or -1) in a vocabulary of `ids`, the last beside the first.
std::vector<int32_t> moved_ids(std::vector<int32_t> ids, int32_t step, int64_t vocabulary);

}  // namespace retort::engines
