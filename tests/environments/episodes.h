// Calls of an environment that wait for their answers.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/future.h"
#include "roles/environment/environment.h"
#include "tests/support/sanitizer.h"

namespace retort::test {

// Long beyond all deadlines of a test.
inline Deadline patience() { return Deadline::after(std::chrono::seconds(120) * kSlowness); }

inline roles::OpenedEpisode open_episode(roles::Environment& environment, uint64_t episode,
                                         const std::string& row = "{}", uint64_t seed = 7) {
  return environment.open({.episode = episode, .seed = seed, .row = row}).get(patience());
}
inline roles::EpisodeTurn turn_of(uint64_t episode, int64_t turn = 1,
                                  const std::string& calls = "[]",
                                  const std::string& text = "hello") {
  return {.episode = episode, .turn = turn, .text = text, .calls = calls};
}
inline roles::EpisodeAnswer step_episode(roles::Environment& environment, uint64_t episode,
                                         int64_t turn = 1, const std::string& calls = "[]") {
  return environment.step(turn_of(episode, turn, calls)).get(patience());
}
inline roles::ClosedEpisode close_episode(roles::Environment& environment, uint64_t episode) {
  return environment.close({.episode = episode}).get(patience());
}

// A call of the tool that all programs of the tests have.
inline const char* const kEchoCall =
    R"([{"id": "c0", "name": "echo", "arguments": {"b": 1, "a": [2]}}])";

}  // namespace retort::test
