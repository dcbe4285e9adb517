#include "launch/doctor/host_answer.h"

#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "launch/doctor/checks.h"
#include "launch/doctor/inputs.h"
#include "launch/document/recipe_file.h"
#include "rpc/archive.h"

namespace retort::launch::doctor {
namespace {

// Beyond it `retort status` on that host takes a launcher that lives for lost
// (launcher_is_lost, run_status.h).
constexpr double kStatusLimit = 15;
constexpr double kReadable = 1;

HostAnswer answer_to(const HostQuestion& question) {
  // Files that are missing are no error here: whether they are there is one of the checks.
  const recipes::Recipe recipe =
      parse_recipe(question.recipe, "the run's recipe",
                   {.cuda = true, .check_files = false, .env_values = false});
  const HostShare share{.recipe = &recipe,
                        .ranks = question.ranks,
                        .bind = question.bind,
                        .rendezvous = question.rendezvous,
                        .launches = false};
  HostAnswer answer;
  answer.findings = examine(share, "");
  answer.prints = path_prints(share);
  return answer;
}

}  // namespace

std::string encode_question(const HostQuestion& question) { return rpc::to_bytes(question); }

HostAnswer decode_answer(std::string_view bytes) { return rpc::from_bytes<HostAnswer>(bytes); }

std::string answer_as_host(const std::string& question) {
  const int64_t heard = wall_clock_ns();
  HostAnswer answer;
  try {
    answer = answer_to(rpc::from_bytes<HostQuestion>(question));
  } catch (const std::exception& error) {
    Finding finding = problem(error.what(), "correct that first; nothing else was looked at");
    finding.check = "examination";
    answer.findings.push_back(std::move(finding));
  }
  answer.heard_ns = heard;
  answer.answered_ns = wall_clock_ns();
  return rpc::to_bytes(answer);
}

int64_t wall_clock_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

ClockDifference clock_difference(int64_t asked_ns, const HostAnswer& answer, int64_t back_ns) {
  // As in NTP: if both ways take equally long the clocks differ by half of the two apparent times'
  // difference, and at worst the error is half of the time on the way.
  const auto there = static_cast<double>(answer.heard_ns - asked_ns);
  const auto back = static_cast<double>(back_ns - answer.answered_ns);
  return {.seconds = (there - back) / 2e9, .error = std::abs(there + back) / 2e9};
}

Finding judge_clock(const ClockDifference& difference) {
  char text[128];
  std::snprintf(text, sizeof text, "its clock is %.3f s %s ours, give or take %.3f s",
                std::abs(difference.seconds), difference.seconds < 0 ? "behind" : "ahead of",
                difference.error);
  const std::string action =
      "set the clocks (chrony, ntpd): times in logs cannot be compared, and `retort status` there "
      "may take a run for lost";
  const double certain = std::abs(difference.seconds) - difference.error;
  if (certain > kStatusLimit) return problem(text, action);
  if (certain > kReadable) return warning(text, action);
  return fine(text);
}

}  // namespace retort::launch::doctor
