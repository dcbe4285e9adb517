#include "recipes/rewards/options.h"

#include <cmath>

#include "http/url.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "rewards: " + what);
}

// Refuses an option that was given but belongs to other types than this one.
void only_for(bool given, std::string_view option, bool fits, std::string_view types,
              RewardType type) {
  if (given && !fits)
    refuse(std::string(option) + " has no effect on type: " + std::string(enum_name(type)) +
           " (it is for " + std::string(types) + "); leave it out");
}

void check_length(const RewardOptions& options) {
  if (!options.min && !options.max) refuse("type: length needs min or max");
  for (const auto& bound : {options.min, options.max})
    if (bound && *bound < 0)
      refuse("a bound of type: length is " + std::to_string(*bound) + "; expected at least 0");
  if (options.min && options.max && *options.min > *options.max)
    refuse("min is " + std::to_string(*options.min) + ", above max " +
           std::to_string(*options.max));
}

// The pattern is compiled here, so that a mistake in it is found before the run.
void check_pattern(const RewardOptions& options) {
  const std::string& pattern = *options.pattern;
  if (pattern.empty()) refuse("pattern is empty; it would fit every completion");
  const std::string type(enum_name(options.type));
  detail::make_pattern(options.name.empty() ? type : options.name, pattern,
                       options.type == RewardType::kFormat);
}

// The question and the pattern for its number must be named before the run. The file itself is read
// when the run begins.
void check_judge(const RewardOptions& options) {
  if (!options.role) refuse("type: judge needs role, the name of the role that is asked");
  if (!options.template_file || options.template_file->empty())
    refuse("type: judge needs template, the file with the question");
  if (!options.pattern)
    refuse("type: judge needs pattern, whose first group is the number, as '(\\d+)'");
  detail::check_number_pattern(options.name.empty() ? "judge" : options.name, *options.pattern);
  if (options.scale && !(std::isfinite(*options.scale) && *options.scale != 0))
    refuse("scale must be a finite number other than 0");
  if (options.max_new_tokens && *options.max_new_tokens < 1)
    refuse("max_new_tokens is " + std::to_string(*options.max_new_tokens) +
           "; expected at least 1");
}

void check_url(const std::string& url) {
  try {
    http::parse_url(url);
  } catch (const Error& error) {
    refuse(error.message());
  }
}

}  // namespace

void RewardOptions::validate() const {
  const bool pattern_type = type == RewardType::kRegex || type == RewardType::kFormat;
  const bool length = type == RewardType::kLength;
  const bool command = type == RewardType::kCommand;
  const bool http = type == RewardType::kHttp;
  const bool model = type == RewardType::kModel;
  const bool judge = type == RewardType::kJudge;
  if (!std::isfinite(weight))
    refuse("weight is " + std::to_string(weight) + "; expected a finite number");

  // An option that the type does not read is a mistake in the recipe, not something to ignore.
  only_for(pattern.has_value(), "pattern", pattern_type || judge, "regex, format and judge", type);
  only_for(min.has_value(), "min", length, "length", type);
  only_for(max.has_value(), "max", length, "length", type);
  only_for(unit.has_value(), "unit", length, "length", type);
  only_for(!argv.empty(), "argv", command, "command", type);
  only_for(url.has_value(), "url", http, "http", type);
  only_for(role.has_value(), "role", model || judge, "model and judge", type);
  only_for(template_file.has_value(), "template", judge, "judge", type);
  only_for(scale.has_value(), "scale", judge, "judge", type);
  only_for(max_new_tokens.has_value(), "max_new_tokens", judge, "judge", type);
  only_for(label.has_value(), "label", model, "model", type);
  only_for(!symbolic.empty(), "symbolic", type == RewardType::kNumeric, "numeric", type);
  only_for(timeout.has_value(), "timeout", asks(), "command, http and numeric with symbolic", type);

  // Some types cannot do without an option, and some values make no sense.
  if (timeout && timeout->count() <= 0)
    refuse("timeout is " + format_duration(*timeout) + "; expected more than 0");
  if (type == RewardType::kRegex && !pattern) refuse("type: regex needs pattern");
  if (pattern_type && pattern) check_pattern(*this);
  if (length) check_length(*this);
  if (command && (argv.empty() || argv.front().empty()))
    refuse("type: command needs argv: [PROGRAM, ARGUMENT, ...]");
  if (!symbolic.empty() && symbolic.front().empty())
    refuse("symbolic needs the name of a program: [PROGRAM, ARGUMENT, ...]");
  if (http && !url) refuse("type: http needs url");
  if (http) check_url(*url);
  if (model && !role) refuse("type: model needs role, the name of the role that scores");
  if (judge) check_judge(*this);
  if (label && *label < 0) refuse("label is " + std::to_string(*label) + "; expected at least 0");
}

bool RewardOptions::asks() const {
  return type == RewardType::kCommand || type == RewardType::kHttp || !symbolic.empty();
}

Duration RewardOptions::longest_wait() const {
  return asks() ? timeout.value_or(detail::kDefaultTimeout) : Duration(0);
}

}  // namespace retort::rewards
