// One entry of a recipe's `rewards:` list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/units.h"

namespace retort::rewards {

enum class RewardType {
  kExactMatch,
  kNumeric,
  kRegex,
  kFormat,
  kLength,
  kCommand,
  kHttp,
  kModel,
  kJudge,
  kEnvironment
};
inline constexpr int64_t kDefaultAnswerTokens = 16;  // of a judge

enum class LengthUnit { kTokens, kCharacters };

// docs/rewards.md says what each type computes, and its protocol. An option that has no effect on
// the type is refused.
struct RewardOptions {
  RewardType type = RewardType::kNumeric;
  double weight = 1.0;
  // in metrics; empty: the type's name, with _2, _3, ... where several have the same
  std::string name;
  std::optional<std::string> pattern;        // regex, format, judge
  std::optional<int64_t> min, max;           // length; at least one
  std::optional<LengthUnit> unit;            // length
  std::vector<std::string> symbolic;         // numeric: who compares what is no number
  std::vector<std::string> argv;             // command
  std::optional<std::string> url;            // http
  std::optional<std::string> role;           // model, judge: who computes it
  std::optional<int64_t> label;              // model
  std::optional<std::string> template_file;  // judge
  std::optional<double> scale;               // judge
  std::optional<int64_t> max_new_tokens;     // judge
  std::optional<Duration> timeout;           // command, http, symbolic: of a whole batch

  template <class V>
  void fields(V& visit) {
    visit("type", type, "how a completion is scored");
    visit("weight", weight, "factor of this reward in the sum; 0: only shown in metrics");
    visit("name", name, "name in metrics and errors; empty: the type");
    visit("pattern", pattern,
          "regex: found anywhere in the completion; format: matches all of it; judge: its first "
          "group, at the last place in the answer, is the number (PCRE2)");
    visit("min", min, "length: shortest completion that gets 1");
    visit("max", max, "length: longest completion that gets 1");
    visit("unit", unit, "length: what is counted; default tokens");
    visit("symbolic", symbolic,
          "numeric: program and arguments, started once, which compares answers that are no "
          "numbers, as [python, -m, retort.symbolic]; no shell");
    visit("argv", argv, "command: program and arguments, started once; no shell");
    visit("url", url, "http: where batches are posted");
    visit(
        "role", role,
        "model: the role whose model scores prompt and completion; judge: the role that is asked");
    visit("label", label, "model: which of the model's numbers, from 0; default 0");
    visit("template", template_file,
          "judge: a Jinja file, what the judge is asked; it may use question, prompt, completion, "
          "reference, num_tokens, truncated and fields");
    visit("scale", scale, "judge: factor of the number that it names; default 1");
    visit("max_new_tokens", max_new_tokens, "judge: longest answer; default 16");
    visit("timeout", timeout, "command, http, symbolic: time for a whole batch; default 60s");
  }
  // kInvalidArgument naming the option; also for a pattern that does not compile
  void validate() const;
  // True if a program or a service is asked, within `timeout`.
  bool asks() const;
  // Returns how long score() waits for a batch at most; 0 for what is computed here.
  Duration longest_wait() const;
};

}  // namespace retort::rewards

template <>
struct retort::EnumNames<retort::rewards::RewardType> {
  using E = retort::rewards::RewardType;
  static constexpr std::array<std::pair<std::string_view, E>, 10> values{
      {{"exact_match", E::kExactMatch},
       {"numeric", E::kNumeric},
       {"regex", E::kRegex},
       {"format", E::kFormat},
       {"length", E::kLength},
       {"command", E::kCommand},
       {"http", E::kHttp},
       {"model", E::kModel},
       {"judge", E::kJudge},
       {"environment", E::kEnvironment}}};
};
template <>
struct retort::EnumNames<retort::rewards::LengthUnit> {
  using E = retort::rewards::LengthUnit;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"tokens", E::kTokens}, {"characters", E::kCharacters}}};
};
