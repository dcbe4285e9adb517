// A reward that a role of the run computes.
#include <utility>

#include "base/error.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

class Role final : public Scorer {
 public:
  Role(std::string name, AskRole ask) : name_(std::move(name)), ask_(std::move(ask)) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    try {
      const std::vector<double> scores = ask_.score(inputs);
      return {scores.begin(), scores.end()};
    } catch (const Error& error) {
      throw error.with("reward", name_);
    }
  }

  void stop() override { ask_.stop(); }

 private:
  std::string name_;
  AskRole ask_;
};

}  // namespace

std::unique_ptr<Scorer> make_role(std::string name, AskRole ask) {
  return std::make_unique<Role>(std::move(name), std::move(ask));
}

}  // namespace retort::rewards::detail
