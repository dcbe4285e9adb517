#include "launch/slurm/command.h"

#include <atomic>

#include "base/error.h"
#include "base/process/run_program.h"
#include "launch/process/find_program.h"

namespace retort::launch {
namespace {

// An answer may have that many bytes; a list of all tasks of a job is far smaller.
constexpr size_t kAnswerBytes = size_t{16} << 20;

}  // namespace

std::string ask_slurm(const std::string& program, const std::vector<std::string>& arguments,
                      Duration limit) {
  std::vector<std::string> argv{find_program(program, "launch.backend: slurm", "slurm-client")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());

  const std::atomic<bool> give_up{false};
  const ProgramEnd end = run_to_end(argv, limit, give_up, kAnswerBytes);
  if (end.is_late)
    throw Error(ErrorCode::kTimeout, program + " did not end within " + format_duration(limit) +
                                         "; it said: " + end.output);
  if (!end.what.empty()) throw Error(ErrorCode::kUnavailable, program + " failed: " + end.output);
  return end.output;
}

}  // namespace retort::launch
