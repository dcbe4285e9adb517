#include "bench/scale/worker.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>

#include "bench/scale/rank_work.h"
#include "bench/scale/usage.h"
#include "tests/support/process.h"

namespace retort::bench {

std::vector<std::string> WorkerOptions::to_args() const {
  return {part,
          std::to_string(ranks),
          std::to_string(first),
          std::to_string(count),
          std::to_string(store_port),
          one_by_one ? "one-by-one" : "batched",
          std::to_string(heartbeat_ms)};
}

WorkerOptions WorkerOptions::from_args(const std::vector<std::string>& args) {
  return {.part = args.at(0),
          .ranks = std::stoll(args.at(1)),
          .first = std::stoll(args.at(2)),
          .count = std::stoll(args.at(3)),
          .store_port = static_cast<uint16_t>(std::stoi(args.at(4))),
          .one_by_one = args.at(5) == "one-by-one",
          .heartbeat_ms = std::stoll(args.at(6))};
}

std::string WorkerReport::to_line() const {
  std::ostringstream line;
  line << seconds << ' ' << rank_seconds << ' ' << sockets << ' ' << descriptors << ' ' << threads
       << ' ' << mib << ' ' << core_seconds;
  return line.str();
}

WorkerReport WorkerReport::from_line(const std::string& line) {
  std::istringstream words(line);
  WorkerReport report;
  words >> report.seconds >> report.rank_seconds >> report.sockets >> report.descriptors >>
      report.threads >> report.mib >> report.core_seconds;
  if (!words) throw std::runtime_error("a worker said '" + line + "'");
  return report;
}

int run_worker(const WorkerOptions& options) {
  const Usage before = usage_of_this_process();
  const std::unique_ptr<RankWork> work = make_rank_work(options);
  test::say("ready");
  if (test::hear() != "go") return 1;

  const std::vector<double> seconds = work->run();
  const Usage after = usage_of_this_process();
  WorkerReport report{.sockets = after.sockets - before.sockets,
                      .descriptors = after.descriptors - before.descriptors,
                      .threads = after.threads - before.threads,
                      .core_seconds = after.core_seconds - before.core_seconds,
                      .mib = after.mib - before.mib};
  for (const double each : seconds) {
    report.seconds = std::max(report.seconds, each);
    report.rank_seconds += each;
  }
  test::say(report.to_line());

  // All of them stay until the last one has counted.
  if (test::hear() != "end") return 1;
  work->close();
  return 0;
}

}  // namespace retort::bench
