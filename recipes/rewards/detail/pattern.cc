// Rewards by regular expression.
#include <utility>

#include "recipes/rewards/detail/regex.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

class Pattern final : public Scorer {
 public:
  Pattern(std::string name, const std::string& pattern, bool whole)
      : regex_(std::move(name), pattern, whole) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores;
    for (const RewardInput& input : inputs) {
      const std::string what = "the completion of " + sample_name(input);
      scores.emplace_back(regex_.matches(input.completion, what) ? 1.0 : 0.0);
    }
    return scores;
  }

 private:
  Regex regex_;
};

}  // namespace

std::unique_ptr<Scorer> make_pattern(std::string name, const std::string& pattern, bool whole) {
  return std::make_unique<Pattern>(std::move(name), pattern, whole);
}

}  // namespace retort::rewards::detail
