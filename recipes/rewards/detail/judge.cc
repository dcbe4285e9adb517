// A reward that a model names when it is asked what it thinks of a completion.
#include <charconv>
#include <cmath>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "models/text/text_template.h"
#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/regex.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

// Returns the variables that a template sees. A row without a reference has no such name, so that
// an empty one is not read as a reference.
std::string variables_of(const RewardInput& input) {
  Json json = to_json(input);
  if (json["reference"].is_null()) json.erase("reference");
  return dump(json);
}

std::optional<double> finite_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

// Returns what a model said after it thought, or nullopt if it was still thinking.
std::optional<std::string_view> after_thought(std::string_view text) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || !text.substr(begin).starts_with(kBegin)) return text;
  const size_t end = text.find(kEnd);
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(end + kEnd.size());
}

// True if more of a number may have followed where an answer was cut: "1" of "10", "7." of "7.5".
bool may_go_on(std::string_view text, std::string_view number) {
  const auto end = static_cast<size_t>(number.data() + number.size() - text.data());
  return text.substr(end).find_first_of(" \t\r\n") == std::string_view::npos;
}

class Judge final : public Scorer {
 public:
  Judge(std::string name, const RewardOptions& options, AskJudge ask)
      : name_(std::move(name)),
        template_(judge_template(*options.template_file)),
        number_(name_, *options.pattern, /*whole=*/false),
        scale_(options.scale.value_or(1)),
        max_new_tokens_(options.max_new_tokens.value_or(kDefaultAnswerTokens)),
        ask_(std::move(ask)) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    std::vector<std::string> questions;
    for (const RewardInput& input : inputs)
      questions.push_back(question_about(input));
    const std::string first = questions.front();
    const std::vector<Said> answers = ask(std::move(questions));

    Scores scores;
    for (size_t i = 0; i < inputs.size(); ++i)
      scores.push_back(score_of(answers[i], inputs[i]));
    if (!std::exchange(shown_, true)) show(first, answers.front(), scores);
    return scores;
  }

  void stop() override { ask_.stop(); }

 private:
  std::string question_about(const RewardInput& input) const {
    try {
      return template_.render(variables_of(input));
    } catch (const Error& error) {
      fail(error.code(), name_, sample_name(input) + ": " + error.message());
    }
  }

  std::vector<Said> ask(std::vector<std::string> questions) {
    const size_t count = questions.size();
    try {
      std::vector<Said> answers = ask_.answers(std::move(questions), max_new_tokens_);
      RETORT_CHECK(answers.size() == count) << name_;
      return answers;
    } catch (const Error& error) {
      throw error.with("reward", name_);
    }
  }

  // The last place in the answer counts: before it a judge may quote the completion, or think
  // aloud.
  std::optional<double> score_of(const Said& said, const RewardInput& input) const {
    const auto text = after_thought(said.text);
    if (!text) return std::nullopt;
    const auto group = number_.find_last(*text, "the judge's answer about " + sample_name(input));
    if (!group || (said.cut && may_go_on(*text, *group))) return std::nullopt;
    const auto number = finite_number(*group);
    return number ? std::optional(*number * scale_) : std::nullopt;
  }

  // The first question and answer are logged, so that one sees at a glance whether question, answer
  // and pattern fit together.
  void show(const std::string& question, const Said& answer, const Scores& scores) const {
    size_t scored = 0;
    for (const auto& score : scores)
      scored += score.has_value();
    const std::string text =
        "reward '" + name_ + "': " + std::to_string(scored) + " of the first " +
        std::to_string(scores.size()) + " answers name a number; asked: " + excerpt(question) +
        " answered: " + excerpt(answer.text) + (answer.cut ? " (cut at max_new_tokens)" : "");
    if (scored == 0) {
      RETORT_LOG(kWarning) << text;
    } else {
      RETORT_LOG(kInfo) << text;
    }
  }

  std::string name_;
  models::TextTemplate template_;
  Regex number_;
  double scale_;
  int64_t max_new_tokens_;
  AskJudge ask_;
  bool shown_ = false;
};

}  // namespace

void check_number_pattern(const std::string& name, const std::string& pattern) {
  if (Regex(name, pattern, /*whole=*/false).num_groups() > 0) return;
  fail(ErrorCode::kInvalidArgument, name,
       "the pattern " + excerpt(pattern) +
           " has no group; the first one is the number, as in 'Score: (\\d+)'");
}

std::unique_ptr<Scorer> make_judge(std::string name, const RewardOptions& options, AskJudge ask) {
  return std::make_unique<Judge>(std::move(name), options, std::move(ask));
}

}  // namespace retort::rewards::detail

namespace retort::rewards {

models::TextTemplate judge_template(const std::string& file) {
  return models::TextTemplate(
      read_file(file),
      {"prompt", "question", "completion", "reference", "num_tokens", "truncated", "fields"}, file);
}

}  // namespace retort::rewards
