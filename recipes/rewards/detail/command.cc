// A reward that a program of the user's computes.
#include <memory>
#include <utility>
#include <vector>

#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/program.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

class Command final : public Scorer {
 public:
  Command(std::string name, const RewardOptions& options)
      : program_(std::move(name), options.argv, options.timeout.value_or(kDefaultTimeout)) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    std::vector<Json> questions;
    for (const RewardInput& input : inputs)
      questions.push_back(to_json(input));
    return program_.ask(questions);
  }

 private:
  Program program_;
};

}  // namespace

std::unique_ptr<Scorer> make_command(std::string name, const RewardOptions& options) {
  return std::make_unique<Command>(std::move(name), options);
}

}  // namespace retort::rewards::detail
