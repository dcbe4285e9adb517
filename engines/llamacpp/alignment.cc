#include "engines/llamacpp/alignment.h"

#include <string>

#include "engines/llamacpp/json.h"

namespace retort::engines::llamacpp {

std::vector<float> align(std::span<const int32_t> token_ids, std::span<const Chances> chances) {
  // The entries are matched with the tokens from the left, each as early as it can be: entry i
  // belongs to no token before first[i].
  std::vector<size_t> first;
  for (size_t at = 0; at < token_ids.size() && first.size() < chances.size(); ++at)
    if (token_ids[at] == chances[first.size()].id) first.push_back(at);
  if (first.size() < chances.size())
    refuse_field("completion_probabilities", "do not follow its tokens: entry " +
                                                 std::to_string(first.size()) + " is of token " +
                                                 std::to_string(chances[first.size()].id));

  // Then they are matched from the right, each as late as it can be. Where both ways meet at one
  // token no other match is possible, and only there is the number certain to be the token's own.
  std::vector<float> log_probs(token_ids.size(), kUnknown);
  size_t left = chances.size();
  for (size_t at = token_ids.size(); at-- > 0 && left > 0;) {
    if (token_ids[at] != chances[left - 1].id) continue;
    --left;
    if (first[left] == at) log_probs[at] = chances[left].log_prob;
  }
  return log_probs;
}

}  // namespace retort::engines::llamacpp
