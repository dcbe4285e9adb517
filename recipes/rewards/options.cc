#include "recipes/rewards/options.h"

#include <cmath>

#include "recipes/rewards/detail/scorer.h"
#include "recipes/rewards/detail/url.h"

namespace retort::rewards {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "rewards: " + what);
}

// `given` options belong to other types than this one.
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

}  // namespace

void RewardOptions::validate() const {
  const bool pattern_type = type == RewardType::kRegex || type == RewardType::kFormat;
  const bool length = type == RewardType::kLength, command = type == RewardType::kCommand,
             http = type == RewardType::kHttp;
  if (!std::isfinite(weight))
    refuse("weight is " + std::to_string(weight) + "; expected a finite number");
  only_for(pattern.has_value(), "pattern", pattern_type, "regex and format", type);
  only_for(min.has_value(), "min", length, "length", type);
  only_for(max.has_value(), "max", length, "length", type);
  only_for(unit.has_value(), "unit", length, "length", type);
  only_for(!argv.empty(), "argv", command, "command", type);
  only_for(url.has_value(), "url", http, "http", type);
  only_for(timeout.has_value(), "timeout", command || http, "command and http", type);
  if (timeout && timeout->count() <= 0)
    refuse("timeout is " + format_duration(*timeout) + "; expected more than 0");
  if (type == RewardType::kRegex && !pattern) refuse("type: regex needs pattern");
  if (pattern_type && pattern) {
    if (pattern->empty()) refuse("pattern is empty; it would fit every completion");
    detail::make_pattern(name.empty() ? std::string(enum_name(type)) : name, *pattern,
                         type == RewardType::kFormat);
  }
  if (length) check_length(*this);
  if (command && (argv.empty() || argv.front().empty()))
    refuse("type: command needs argv: [PROGRAM, ARGUMENT, ...]");
  if (http && !url) refuse("type: http needs url");
  if (http) detail::parse_url(*url);
}

}  // namespace retort::rewards
