// The rewards of the text: whether they are numbers, and the same ones whenever they are asked for.
#include <algorithm>
#include <cmath>
#include <vector>

#include "engines/probing/session.h"

namespace retort::engines {
namespace {

// Takes the last third of the text as the completion.
RewardRequest text_of(const ProbeSession& session, uint64_t number, int64_t label) {
  const std::vector<int32_t> ids = session.text.sequence(number);
  const auto middle = ids.end() - static_cast<std::ptrdiff_t>(ids.size() / 3);
  return {.prompt = {ids.begin(), middle}, .completion = {middle, ids.end()}, .label = label};
}

void compare(double a, double b, Difference& found) {
  const double off = std::abs(a - b);
  found.largest = std::max(found.largest, off);
  found.mean =
      (found.mean * static_cast<double>(found.count) + off) / static_cast<double>(found.count + 1);
  ++found.count;
}

}  // namespace

void ask_rewards(ProbeSession& session) {
  Contract& contract = session.contract;
  const int64_t labels = std::min<int64_t>(session.abilities.rewards, kMaxProbeLabels);
  for (int64_t label = 0; label < labels; ++label) {
    const RewardRequest text = text_of(session, 0, label);
    const double first = session.ask.reward_together("the reward of the text", {text}).front();
    if (label == 0) contract.reward = first;
    const double again = session.ask.reward_together("the reward, again", {text}).front();
    compare(first, again, contract.reward_repeated);

    // The others begin differently, so that only the batch can change the number.
    const std::vector<double> together = session.ask.reward_together(
        "the reward beside others",
        {text_of(session, 1, label), text, text_of(session, 2, label), text_of(session, 3, label)});
    compare(first, together[1], contract.reward_batched);
  }
}

}  // namespace retort::engines
