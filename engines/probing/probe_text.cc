#include "engines/probing/probe_text.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "engines/probing/probe.h"

namespace retort::engines {
namespace {

// Ordinary sentences, which any language model finds likelier than random ids.
constexpr const char* kText =
    "The sun rises in the east and sets in the west. Water freezes at 0 degrees and boils at 100. "
    "A year has twelve months, a week has seven days, and a day has twenty-four hours. She opened "
    "the door, looked at the sky and said that it would rain before the evening. Two and two make "
    "four, and ten times ten is one hundred. Most birds can fly, but not all of them can swim.";

constexpr size_t kNonceTokens = 4;
constexpr size_t kTextTokens = 44;
constexpr size_t kContinuationTokens = 8;
constexpr size_t kLeastText = kProbeRows + 2;
constexpr size_t kLeastDifferent = 8;

}  // namespace

ProbeText::ProbeText(const models::Tokenizer& tokenizer, int64_t context_tokens, uint64_t nonce)
    : nonce_(nonce) {
  const std::vector<int32_t> all = tokenizer.encode(kText, false);
  // A tokenizer that is not a language model's may make few tokens of the text, or all the same
  // ones, with which no question tells anything.
  const std::set<int32_t> different(all.begin(), all.end());
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "probe: " + what)
        .with("tokenizer", tokenizer.folder().string());
  };
  if (all.size() < kLeastText + kContinuationTokens || different.size() < kLeastDifferent)
    refuse("the tokenizer makes " + std::to_string(all.size()) + " tokens of plain text, " +
           std::to_string(different.size()) + " of them different; a language model's makes more");

  // The text must leave room in the engine's context for the tokens that are drawn behind it.
  size_t length = std::min(kTextTokens, all.size() - kContinuationTokens);
  if (context_tokens > 0) {
    const auto context = static_cast<size_t>(context_tokens);
    if (context < kNonceTokens + kLeastText + size_t{kProbeDrawnTokens})
      refuse("the engine's context of " + std::to_string(context) + " tokens is below the " +
             std::to_string(kNonceTokens + kLeastText + size_t{kProbeDrawnTokens}) +
             " of the probe's text");
    length = std::min(length, context - kNonceTokens - size_t{kProbeDrawnTokens});
  }
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(length);
  text_.assign(all.begin(), end);
  continuation_.assign(end, end + kContinuationTokens);
}

std::vector<int32_t> ProbeText::sequence(uint64_t number) const {
  // The nonce is made of ids of the text: the model knows them all, and none of them is special.
  std::vector<int32_t> ids;
  for (size_t i = 0; i < kNonceTokens; ++i)
    ids.push_back(text_[random_bits(nonce_, number, i) % text_.size()]);
  ids.insert(ids.end(), text_.begin(), text_.end());
  return ids;
}

std::vector<int32_t> ProbeText::positions() const {
  const auto last = static_cast<int32_t>(kNonceTokens + text_.size()) - 2;
  std::vector<int32_t> positions;
  for (int32_t p = last - static_cast<int32_t>(kProbeRows) + 1; p <= last; ++p)
    positions.push_back(p);
  return positions;
}

std::vector<int32_t> moved_ids(std::vector<int32_t> ids, int32_t step, int64_t vocabulary) {
  for (int32_t& id : ids)
    id = static_cast<int32_t>((id + step + vocabulary) % vocabulary);
  return ids;
}

}  // namespace retort::engines
