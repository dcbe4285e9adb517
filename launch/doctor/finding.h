// One line of `retort doctor`: what was looked at, whether it will do, and what to do if not.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"

namespace retort::launch::doctor {

enum class Verdict : uint8_t { kOk, kWarning, kProblem };

struct Finding {
  std::string host;   // where; of a run's own folder and the like the host of the doctor
  std::string check;  // "descriptors"
  Verdict verdict = Verdict::kOk;
  std::string what;    // what was found
  std::string action;  // what to do; "" where nothing is wrong

  template <class A>
  void serialize(A& archive) {
    archive(host, check, verdict, what, action);
  }
};

// What a check returns; its name and host are put in by whoever runs it.
inline Finding fine(std::string what) {
  return {.host = {}, .check = {}, .verdict = Verdict::kOk, .what = std::move(what), .action = {}};
}
inline Finding warning(std::string what, std::string action) {
  Finding finding = fine(std::move(what));
  finding.verdict = Verdict::kWarning;
  finding.action = std::move(action);
  return finding;
}
inline Finding problem(std::string what, std::string action) {
  Finding finding = warning(std::move(what), std::move(action));
  finding.verdict = Verdict::kProblem;
  return finding;
}

int64_t count_of(const std::vector<Finding>& findings, Verdict verdict);
// A line for each, and one with what to do below those that are not ok.
std::string to_text(const std::vector<Finding>& findings);
// One object: {"problems", "warnings", "findings": [...]}.
std::string to_json(const std::vector<Finding>& findings);

}  // namespace retort::launch::doctor

template <>
struct retort::EnumNames<retort::launch::doctor::Verdict> {
  using E = retort::launch::doctor::Verdict;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"ok", E::kOk}, {"warning", E::kWarning}, {"problem", E::kProblem}}};
};
