// What the doctor asks another host, through `retort host` there (launch/ssh/host_link.h), and
// what that one answers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launch/doctor/finding.h"

namespace retort::launch::doctor {

struct HostQuestion {
  std::string recipe;                    // as a run saves it
  std::map<std::string, int64_t> ranks;  // as HostShare has these
  std::string bind, rendezvous;

  template <class A>
  void serialize(A& archive) {
    archive(recipe, ranks, bind, rendezvous);
  }
};

struct HostAnswer {
  std::vector<Finding> findings;              // without the host's name
  std::map<std::string, std::string> prints;  // path_prints(), inputs.h
  // When the question was there and when the answer went, on that host's wall clock, in nanoseconds
  // since the epoch.
  int64_t heard_ns = 0, answered_ns = 0;

  template <class A>
  void serialize(A& archive) {
    archive(findings, prints, heard_ns, answered_ns);
  }
};

std::string encode_question(const HostQuestion& question);
// kCorrupt.
HostAnswer decode_answer(std::string_view bytes);

// Makes all checks on the host that is asked. What fails is a finding; throws nothing.
std::string answer_as_host(const std::string& question);

// Nanoseconds since the epoch on this host's wall clock.
int64_t wall_clock_ns();
// How far that host's clock is ahead of ours. The way there and back took what is left of the time
// between asking and hearing the answer, and is split evenly: at most half of it is the error.
struct ClockDifference {
  double seconds = 0;
  double error = 0;
};
ClockDifference clock_difference(int64_t asked_ns, const HostAnswer& answer, int64_t back_ns);
// Waits are measured on clocks that nobody sets; only what people and `retort status` read has
// times of the wall clock.
Finding judge_clock(const ClockDifference& difference);

}  // namespace retort::launch::doctor
