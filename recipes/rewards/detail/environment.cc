// The reward that an environment gives an episode when it is closed.
#include <utility>

#include "base/error.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

class Environment final : public Scorer {
 public:
  explicit Environment(std::string name) : name_(std::move(name)) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores;
    for (const RewardInput& input : inputs) {
      if (!input.episode)
        fail(ErrorCode::kInvalidArgument, name_,
             sample_name(input) + " was drawn without an environment");
      if (!input.episode->reward)
        fail(ErrorCode::kInvalidArgument, name_,
             sample_name(input) +
                 " has no reward; expected a number of get_reward(), or of a program or service "
                 "{\"close\": N, \"reward\": NUMBER}; give one, or take {type: environment} out of "
                 "rewards");
      scores.emplace_back(*input.episode->reward);
    }
    return scores;
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<Scorer> make_environment(std::string name) {
  return std::make_unique<Environment>(std::move(name));
}

}  // namespace retort::rewards::detail
