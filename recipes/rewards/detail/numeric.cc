// A reward for the final answer of a completion: numbers are compared here, what is none by a
// program, where the recipe names one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recipes/data/answer.h"
#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/program.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

// Returns the seconds that one of `pairs` may take, so that all of them are answered within
// `timeout` even if each takes as long. They share four fifths of it, because a program takes a
// while to start.
double seconds_of_a_pair(Duration timeout, size_t pairs) {
  constexpr int64_t kLongestMs = 5'000;
  const int64_t part = timeout.count() * 4 / 5 / static_cast<int64_t>(pairs);
  return static_cast<double>(std::clamp<int64_t>(part, 1, kLongestMs)) / 1000;
}

class Numeric final : public Scorer {
 public:
  Numeric(std::string name, const RewardOptions& options) : name_(std::move(name)) {
    if (!options.symbolic.empty())
      program_.emplace(name_, options.symbolic, options.timeout.value_or(kDefaultTimeout));
  }

  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores(inputs.size());
    std::vector<size_t> undecided;
    for (size_t i = 0; i < inputs.size(); ++i) {
      require_reference(name_, inputs[i]);
      if (!program_ && !data::has_answer(inputs[i].reference)) refuse_reference(inputs[i]);
      const data::Agreement agreement =
          data::compare_answers(inputs[i].completion, inputs[i].reference);
      // Only answers that cannot be compared here go to the program, all of them in one batch.
      if (program_ && agreement == data::Agreement::kUnknown) {
        undecided.push_back(i);
      } else {
        scores[i] = agreement == data::Agreement::kSame ? 1.0 : 0.0;
      }
    }
    if (!undecided.empty()) ask(inputs, undecided, scores);
    return scores;
  }

 private:
  // The text that the model under training wrote decides how long a comparison takes. One that
  // takes too long has no score, and the run goes on.
  void ask(const std::vector<RewardInput>& inputs, const std::vector<size_t>& undecided,
           Scores& scores) {
    std::vector<Json> questions;
    const double seconds = seconds_of_a_pair(program_->timeout(), undecided.size());
    for (const size_t i : undecided) {
      Json question = to_json(inputs[i]);
      question["answer"] = data::answer_text(inputs[i].completion);
      question["label"] = data::answer_text(inputs[i].reference);
      question["seconds"] = seconds;
      questions.push_back(std::move(question));
    }

    // An answer is equal or it is not, so any other score than 0 or 1 is a mistake in the program.
    const Scores said = program_->ask(questions, Program::Late::kUnscored);
    for (size_t i = 0; i < undecided.size(); ++i) {
      if (said[i] && *said[i] != 0 && *said[i] != 1)
        program_->give_up(ErrorCode::kCorrupt,
                          "it gave " + sample_name(inputs[undecided[i]]) + " the score " +
                              std::to_string(*said[i]) +
                              "; expected 1 (equal), 0 (not equal) or null (it cannot tell)");
      scores[undecided[i]] = said[i];
    }
  }

  [[noreturn]] void refuse_reference(const RewardInput& input) const {
    const bool has_digits = input.reference.find_first_of("0123456789") != std::string::npos;
    fail(ErrorCode::kInvalidArgument, name_,
         "the reference of " + sample_name(input) +
             (has_digits ? " holds no number that can be read as its answer: "
                         : " holds no number: ") +
             excerpt(input.reference) +
             (has_digits ? "; write the answer behind '####' or in \\boxed{} (docs/rewards.md says "
                           "which numbers are read), or let a program compare (symbolic)"
                         : "; a program may compare other answers (symbolic)"));
  }

  std::string name_;
  std::optional<Program> program_;
};

}  // namespace

std::unique_ptr<Scorer> make_numeric(std::string name, const RewardOptions& options) {
  return std::make_unique<Numeric>(std::move(name), options);
}

}  // namespace retort::rewards::detail
