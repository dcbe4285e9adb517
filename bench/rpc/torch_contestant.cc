#include "bench/rpc/torch_contestant.h"

#include <signal.h>

#include <sstream>

#include "base/error.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

class TorchContestant final : public Contestant {
 public:
  TorchContestant(const std::string& python, const std::string& transport)
      : process_(
            test::ChildProcess::spawn({.role = {},
                                       .args = {RETORT_BENCH_FOLDER "/rpc/torch_rpc.py", transport},
                                       .env = {{"OMP_NUM_THREADS", "1"}},
                                       .program = python})) {
    // Importing torch takes a while on a busy machine.
    const std::string line = process_.read_line(Deadline::after(2 * kWait));
    if (line != "ready")
      throw Error(ErrorCode::kUnavailable, "torch_rpc.py said '" + line + "' instead of 'ready'");
    signal_group(SIGSTOP);
  }
  ~TorchContestant() override {
    signal_group(SIGCONT);
    process_.close_stdin();
    try {
      process_.wait(Deadline::after(kWait));
    } catch (const Error&) {
      process_.kill();
    }
  }

  Turn run(int64_t bytes, int depth, int count) override {
    Turn turn;
    turn.seconds = ask(
        "run " + std::to_string(bytes) + " " + std::to_string(depth) + " " + std::to_string(count),
        turn.call_us);
    return turn;
  }
  std::optional<LoadedTurn> run_loaded(double seconds) override {
    LoadedTurn turn;
    turn.stream_bytes_per_second = ask("load " + std::to_string(seconds), turn.call_us);
    return turn;
  }

 private:
  // The first number of the answer; the others are microseconds of calls.
  double ask(const std::string& line, std::vector<double>& call_us) {
    signal_group(SIGCONT);
    process_.write_line(line);
    std::istringstream words(process_.read_line(Deadline::after(2 * kWait)));
    signal_group(SIGSTOP);

    double first = 0;
    words >> first;
    for (double us = 0; words >> us;)
      call_us.push_back(us);
    if (call_us.empty())
      throw Error(ErrorCode::kCorrupt, "torch_rpc.py answered without a time to '" + line + "'");
    return first;
  }
  void signal_group(int signal) { ::kill(-process_.pid(), signal); }

  test::ChildProcess process_;
};

}  // namespace

std::unique_ptr<Contestant> make_torch_contestant(const std::string& python,
                                                  const std::string& transport) {
  return std::make_unique<TorchContestant>(python, transport);
}

}  // namespace retort::bench
