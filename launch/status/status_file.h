// Keeps status.json in a run's folder: what a run is doing, for people and programs that did not
// start it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/units.h"
#include "launch/status/progress.h"
#include "launch/status/run_status.h"
#include "launch/supervision/supervisor.h"
#include "launch/writers/disk_thread.h"

namespace retort::launch {

inline constexpr const char* kStatusFile = "status.json";

// What the file in a run's folder says. kInvalidArgument where there is none, kCorrupt for one that
// is none.
RunStatus read_run_status(const std::filesystem::path& run_folder);

// Writes what a supervisor reports (run_status.h has the meaning of each number):
//
//   at once       when the state of the run or of a process has changed
//   every second  besides, so that a reader sees that the launcher lives
//
// A reader always finds a whole file. The supervisor must not hang with the disk: a thread of its
// own writes, the newest state each time, and is waited for a moment only. A full disk is written
// to (ReservedFile). A file that cannot be written is a warning, said once; the run goes on.
//
// Threads: one, the supervisor's.
class StatusFile : public SupervisorObserver {
 public:
  using Clock = std::chrono::system_clock;
  struct Options {
    std::filesystem::path path;
    std::string run, recipe;
    bool reproducible = true;
    int64_t start_step = 0;            // where a resumed run continues
    std::optional<int64_t> max_steps;  // none: measured in epochs
    // Position, loss and remaining time are taken from there; null: they stay unknown. Told of
    // everything before this one.
    const ProgressState* progress = nullptr;
    // The run goes on without this launcher, whatever becomes of that.
    bool is_attached = false;
    std::function<Clock::time_point()> now = &Clock::now;
    Duration patience{1'000};    // for a file system to answer; once, while it does not
    Duration last_wait{10'000};  // the same for the last state
  };
  explicit StatusFile(Options options);  // writes the first
  ~StatusFile() override;                // without finish(): says that the launcher gave up

  void on_start(const ProcessSpec& spec, pid_t pid) override;
  void on_status(const ProcessSpec& spec, const ProcessStatus& status) override;
  void on_end(const ProcessSpec& spec, const ProcessEnd& end) override;
  void on_phase(const std::string& message) override;
  void on_stopping() override;
  void on_tick() override;
  // How the run ended; the last to be written. One that goes on from its last checkpoint has not
  // ended: whoever watches it sees why it begins again, and no exit code.
  void finish(const SupervisorResult& result, bool goes_on = false);
  // What is known so far; for others who tell of the run.
  const RunStatus& status() const { return status_; }

 private:
  RunStatus::Process& process(const std::string& role, int64_t rank);
  void enter(RunStatus::Process& process, ProcessState state);
  void enter(RunState state);
  void note_failure(const ProcessFailure& failure, const std::string& cause);
  void take_progress();
  void write();
  void write_last(bool keeps_room);
  void start_writing(bool is_last);
  void tell_trouble();

  const Options options_;
  RunStatus status_;
  bool changed_ = true;  // a state, since the last writing
  bool warned_ = false;
  bool finished_ = false;

  struct Disk;
  std::shared_ptr<Disk> disk_;  // the thread's, while it is not idle
  DiskThread thread_;
};

}  // namespace retort::launch
