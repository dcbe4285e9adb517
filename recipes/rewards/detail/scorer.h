// One reward, whatever it does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recipes/rewards/reward.h"

namespace retort::rewards::detail {

using Scores = std::vector<std::optional<double>>;

class Scorer {
 public:
  virtual ~Scorer() = default;
  // one for each input; errors as RewardSet::score
  virtual Scores score(const std::vector<RewardInput>& inputs) = 0;
  // Ends a score() that may wait for long. Any thread.
  virtual void stop() {}
};

inline constexpr Duration kDefaultTimeout = std::chrono::seconds(60);
// The pattern of `format` where none is given: one block of thought, then the answer.
inline constexpr std::string_view kThinkFormat = "<think>(?!.*<think>).*?</think>.*";

// `name` is what errors call the reward.
std::unique_ptr<Scorer> make_exact_match(std::string name);
std::unique_ptr<Scorer> make_numeric(std::string name, const RewardOptions& options);
std::unique_ptr<Scorer> make_length(const RewardOptions& options);
// `whole`: the pattern must match all of the completion, and its dots match newlines.
// kInvalidArgument with the place of the mistake.
std::unique_ptr<Scorer> make_pattern(std::string name, const std::string& pattern, bool whole);
std::unique_ptr<Scorer> make_command(std::string name, const RewardOptions& options);
std::unique_ptr<Scorer> make_http(std::string name, const RewardOptions& options);
std::unique_ptr<Scorer> make_role(std::string name, AskRole ask);
std::unique_ptr<Scorer> make_judge(std::string name, const RewardOptions& options, AskJudge ask);
std::unique_ptr<Scorer> make_environment(std::string name);
// kInvalidArgument for a pattern without a group.
void check_number_pattern(const std::string& name, const std::string& pattern);

// "reward 'numeric': " + what, as an error.
[[noreturn]] void fail(ErrorCode code, const std::string& name, const std::string& what);
// kInvalidArgument for a sample without a reference.
void require_reference(const std::string& name, const RewardInput& input);
// Returns the name of a sample in errors: its origin, or the beginning of its prompt.
std::string sample_name(const RewardInput& input);
// Text for an error: cut at 200 characters, control characters replaced.
std::string excerpt(std::string_view text);

}  // namespace retort::rewards::detail
