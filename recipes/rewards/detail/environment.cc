// The reward that an episode's environment gave when it was closed.
#include <nlohmann/json.hpp>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

using nlohmann::json;

class OfEnvironment final : public Scorer {
 public:
  explicit OfEnvironment(std::string name) : name_(std::move(name)) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores;
    for (const RewardInput& input : inputs)
      scores.push_back(score_of(input));
    return scores;
  }

 private:
  std::optional<double> score_of(const RewardInput& input) const {
    if (input.episode.empty())
      fail(ErrorCode::kInvalidArgument, name_, sample_name(input) + " is no episode");
    const json episode = json::parse(input.episode, nullptr, /*allow_exceptions=*/false);
    if (!episode.is_object())
      fail(ErrorCode::kCorrupt, name_,
           sample_name(input) +
               ": what the episode came to is no JSON object: " + excerpt(input.episode));
    // Nobody knows what an episode would have come to whose environment failed.
    if (episode.contains("unscorable")) return std::nullopt;

    const auto reward = episode.find("reward");
    if (reward == episode.end() || reward->is_null())
      fail(ErrorCode::kInvalidArgument, name_,
           sample_name(input) + " has no reward in close; its environment must answer that with " +
               "one, or the recipe score by other rewards");
    if (!reward->is_number() || !std::isfinite(reward->get<double>()))
      fail(ErrorCode::kCorrupt, name_,
           sample_name(input) + ": the reward is no finite number: " + excerpt(reward->dump()));
    return reward->get<double>();
  }

  std::string name_;
};

}  // namespace

std::unique_ptr<Scorer> make_environment(std::string name) {
  return std::make_unique<OfEnvironment>(std::move(name));
}

}  // namespace retort::rewards::detail
