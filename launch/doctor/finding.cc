#include "launch/doctor/finding.h"

#include <algorithm>

#include "base/json_text.h"

namespace retort::launch::doctor {
namespace {

std::string padded(std::string_view text, size_t width) {
  std::string result(text);
  result.resize(std::max(width, text.size()), ' ');
  return result;
}

template <class Part>
size_t widest(const std::vector<Finding>& findings, Part part) {
  size_t width = 0;
  for (const Finding& one : findings)
    width = std::max(width, part(one).size());
  return width;
}

}  // namespace

int64_t count_of(const std::vector<Finding>& findings, Verdict verdict) {
  return std::ranges::count(findings, verdict, &Finding::verdict);
}

std::string to_text(const std::vector<Finding>& findings) {
  constexpr size_t kVerdictWidth = 7;
  const size_t hosts = widest(findings, [](const Finding& one) { return one.host; });
  const size_t checks = widest(findings, [](const Finding& one) { return one.check; });

  std::string text;
  for (const Finding& one : findings) {
    text += padded(enum_name(one.verdict), kVerdictWidth) + "  " + padded(one.host, hosts) + "  " +
            padded(one.check, checks) + "  " + one.what + "\n";
    if (!one.action.empty())
      text += std::string(kVerdictWidth + hosts + checks + 6, ' ') + "-> " + one.action + "\n";
  }
  text += std::to_string(count_of(findings, Verdict::kProblem)) + " problems, " +
          std::to_string(count_of(findings, Verdict::kWarning)) + " warnings\n";
  return text;
}

std::string to_json(const std::vector<Finding>& findings) {
  const auto object = [](const Finding& one) {
    return JsonLine()
        .add("host", std::string_view(one.host))
        .add("check", std::string_view(one.check))
        .add("verdict", enum_name(one.verdict))
        .add("what", std::string_view(one.what))
        .add("action", std::string_view(one.action))
        .str();
  };
  return JsonLine()
      .add("problems", count_of(findings, Verdict::kProblem))
      .add("warnings", count_of(findings, Verdict::kWarning))
      .raw("findings", json_array(findings, object))
      .str();
}

}  // namespace retort::launch::doctor
