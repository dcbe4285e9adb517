// What a person sees while a run goes on: a live display on a terminal, plain lines elsewhere.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "launch/status/metrics_follower.h"
#include "launch/supervision/supervisor.h"
#include "launch/writers/background_writer.h"

namespace retort::launch {

// What the display shows; render_progress is a pure function of it.
struct ProgressState {
  struct Process {
    std::string name;  // "teacher/0"
    pid_t pid = 0;
    std::string state = "starting";
    std::string message;
  };
  std::string title;
  std::vector<Process> processes;
  double fraction = 0;   // of the run, 0 to 1
  std::string position;  // "120/200" or "epoch 0.52/1"
  std::optional<LoggedStep> last, last_eval;
  // Numbers that this kind of run is watched by beside its loss, as last logged: not every row has
  // them. One that is no number (NaN) is not shown, unless it is a loss; a count (".../num_lost")
  // only above 0.
  std::vector<std::pair<std::string, double>> watched;
  std::optional<std::chrono::seconds> eta;
  std::string notice;   // "stopping ..."
  std::string warning;  // the last one of a process, with its name
};

// The lines of the live display, none wider than `columns`: title, bar with position, ETA and rate,
// the other numbers of the last logged step, the last evaluation, processes, warning, notice.
std::vector<std::string> render_progress(const ProgressState& state, int columns);
// "step 10/200  loss 2.3456  reward 0.2500  tokens/s 1234  lr 1.0e-04  eta 1m05s"; rows of an
// evaluation: "eval at step 50  eval_loss ...".
std::string plain_step(const LoggedStep& row, const std::string& position,
                       const std::optional<std::chrono::seconds>& eta,
                       const std::vector<std::pair<std::string, double>>& watched = {});

// Shows what a supervisor reports and what the run writes into metrics.jsonl.
//
// Plain lines: every change of a process's state, every warning and every evaluation, and of the
// logged steps the first, the last, and in between at most one every plain_interval; metrics.jsonl
// has them all.
//
// A reader that does not read (a pager, Ctrl-S) keeps nobody waiting: a live display is drawn again
// once the last drawing is written; plain lines wait, beyond `max_waiting` bytes they are dropped,
// and how many were is said in the next line. Only finish() waits, for `last_wait`.
//
// Threads: one, the supervisor's. One of its own writes.
class Progress : public SupervisorObserver {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    int fd = 1;
    // redraw in place, at most five times a second; else plain lines
    bool live = false;
    Duration plain_interval{10'000};  // between plain lines of logged steps
    // width of a live display; 0: the terminal's, asked at every redraw
    int columns = 0;
    std::string title;              // "<recipe> -> runs/gsm8k"
    std::filesystem::path metrics;  // followed for new rows
    // names of its numbers that are shown beside the loss (RecipeType::watched_metrics)
    std::vector<std::string> watched;
    int64_t start_step = 0;            // where a resumed run continues
    std::optional<int64_t> max_steps;  // one of the two
    std::optional<double> num_epochs;
    std::function<Clock::time_point()> now = &Clock::now;
    size_t max_waiting = 64 << 10;  // bytes of plain lines that nobody has read
    Duration last_wait{2'000};      // for the last lines to be read
    Duration patience{1'000};       // for the file system of `metrics`; once, while it hangs
  };
  explicit Progress(Options options);
  ~Progress() override;  // finish()

  void on_start(const ProcessSpec& spec, pid_t pid) override;
  void on_status(const ProcessSpec& spec, const ProcessStatus& status) override;
  void on_exit(const ProcessSpec& spec, const std::string& what) override;
  void on_phase(const std::string& message) override;
  void on_tick() override;
  // Shows the last state, which is not dropped, and leaves the cursor below it. What is not written
  // after last_wait is lost. Idempotent.
  void finish();
  // What is known so far; for others who tell of the run.
  const ProgressState& state() const { return state_; }

 private:
  ProgressState::Process& process(const ProcessSpec& spec);
  void take_rows();
  void take_step(const LoggedStep& row);
  void take_eval(const LoggedStep& row);
  void update_position(const LoggedStep& row);
  void update_watched(const LoggedStep& row);
  void update_eta();
  void print_step();
  void draw();
  bool print(const std::string& text);  // false: dropped

  Options options_;
  BackgroundWriter writer_;
  int64_t dropped_ = 0;  // plain lines since the last one that was taken
  MetricsFollower tail_;
  ProgressState state_;
  size_t drawn_lines_ = 0;
  std::optional<Clock::time_point> last_draw_;
  std::optional<Clock::time_point> last_plain_;  // when a plain line showed a logged step
  bool step_unshown_ = false;                    // no plain line has shown state_.last
  // time and fraction of the first row seen
  std::optional<std::pair<Clock::time_point, double>> first_;
  bool finished_ = false;
};

}  // namespace retort::launch
