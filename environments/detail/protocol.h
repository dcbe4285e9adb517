// The lines of the protocol (docs/environments.md): what is asked, and what an answer must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "roles/environment/methods.h"

namespace retort::environments::detail {

inline constexpr int64_t kProtocolVersion = 1;
inline constexpr size_t kMaxLineBytes = size_t{1} << 20;  // each way, without the line's end

enum class Verb { kOpen, kStep, kClose };
std::string_view to_string(Verb verb);

// Requests: a JSON object each, without a line's end. `number` is the episode's on the wire.
// kInvalidArgument for a row that is no object, calls that are no array, more than kMaxLineBytes.
std::string hello_line(int64_t episodes);
std::string open_line(uint64_t number, const roles::OpenEpisode& request);
std::string step_line(uint64_t number, const roles::EpisodeTurn& turn);
std::string close_line(uint64_t number);

// The first line of an environment.
struct Hello {
  bool user_turns = false;
};
// kCorrupt for what is none; kMismatch for another version.
Hello read_hello(std::string_view line);

// What a call brings, in the order of Verb.
using Reply = std::variant<roles::OpenedEpisode, roles::EpisodeAnswer, roles::ClosedEpisode>;

// A line that says which call it answers.
struct AnswerLine {
  Verb verb = Verb::kOpen;
  uint64_t number = 0;
  Reply reply;
  bool refused = false;  // it has "error" instead of a reply, which ends the episode
  std::string words;     // of that
  std::string wrong;     // why the rest of the line is no answer to such a call; empty: it is one
};
// kCorrupt, with what was expected, for a line that does not say what it answers.
AnswerLine read_answer(std::string_view line);

// The beginning of a line in quotes, for errors.
std::string quoted_line(std::string_view line);

}  // namespace retort::environments::detail
