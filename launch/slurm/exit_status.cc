#include "launch/slurm/exit_status.h"

#include <charconv>
#include <csignal>
#include <cstring>
#include <string>

namespace retort::launch {
namespace {

std::optional<int64_t> number_at(std::string_view text) {
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// "0-3,5" and the like.
bool has_task(std::string_view list, int64_t task) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view part = list.substr(0, comma);
    const size_t dash = part.find('-');
    const auto first = number_at(part);
    const auto last = dash == std::string_view::npos ? first : number_at(part.substr(dash + 1));
    if (first && last && *first <= task && task <= *last) return true;
    list = comma == std::string_view::npos ? "" : list.substr(comma + 1);
  }
  return false;
}

// A death by any signal begins with its name in words; Slurm has one of its own for the system's
// killing what takes too much memory.
int status_of_words(std::string_view words) {
  constexpr std::string_view kExited = "Exited with exit code ";
  if (words.starts_with(kExited))
    return static_cast<int>(number_at(words.substr(kExited.size())).value_or(1) << 8);
  for (int number = 1; number < NSIG; ++number)
    if (words.starts_with(::strsignal(number))) return number;
  return SIGKILL;
}

}  // namespace

std::optional<int> task_end_of(std::string_view srun_words, int64_t task) {
  constexpr std::string_view kError = "srun: error: ";
  std::optional<int> status;
  while (!srun_words.empty()) {
    const size_t end = srun_words.find('\n');
    // A line that stands there only in part is for the next look.
    if (end == std::string_view::npos) break;
    std::string_view line = srun_words.substr(0, end);
    srun_words.remove_prefix(end + 1);
    if (line.find("Node failure") != std::string_view::npos ||
        line.find("NODE FAILURE") != std::string_view::npos)
      return std::nullopt;
    if (!line.starts_with(kError)) continue;

    // "<nodes>: task <list>: <words>"
    const size_t task_word = line.find(": task");
    if (task_word == std::string_view::npos) continue;
    line.remove_prefix(task_word + 6);
    if (line.starts_with('s')) line.remove_prefix(1);
    const size_t colon = line.find(": ");
    if (!line.starts_with(' ') || colon == std::string_view::npos) continue;
    if (has_task(line.substr(1, colon - 1), task)) status = status_of_words(line.substr(colon + 2));
  }
  return status;
}

int task_status_of(int exit_code) {
  return exit_code > 128 && exit_code < 128 + NSIG ? exit_code - 128 : exit_code << 8;
}

}  // namespace retort::launch
