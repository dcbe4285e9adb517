// What it costs to bring many ranks together on this machine, in processes that hold some ranks
// each, a thread for a rank and no model.
//   scale_bench [--json] [--part sessions|world] [--ranks 16,64,256] [--per-process 16]
//               [--one-by-one] [--heartbeat 1s]
//
// sessions: one half of the ranks are students, the other half teachers; every student's agent
//   finds and connects to every teacher's (all leaders of one role to all leaders of another).
// world: the ranks make a world of dp ranks, sum over its groups, and meet in a barrier.
// Columns: seconds from the start to the last rank; milliseconds of a session, over all of a rank;
//   seconds that cores worked, but for the store's; what the store was asked (requests,
//   connections); what a rank holds then: sockets, descriptors, threads, resident MiB. A rank's own
//   store connection is among them.
// --one-by-one: sessions as a reference: a look-up and a connection after the other.
// --heartbeat: rpc.heartbeat_interval. Each connection of a session has a message each way in it,
//   and those of 16,384 sessions keep two cores busy at one a second.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sizes.h"
#include "base/units.h"
#include "bench/scale/usage.h"
#include "bench/scale/worker.h"
#include "rpc/launcher_port/store_identity.h"
#include "rpc/rendezvous/store_server.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

using namespace std::chrono_literals;
using rpc::rendezvous::StoreServer;
constexpr auto kLimit = 15min;

struct Options {
  bool json = false, one_by_one = false;
  std::vector<std::string> parts{"sessions", "world"};
  std::vector<int64_t> ranks{16, 64, 256};
  int64_t per_process = 16;
  std::chrono::milliseconds heartbeat{1000};
};

struct Row {
  std::string part;
  int64_t ranks = 0;
  WorkerReport sum;  // `seconds` is the longest
  uint64_t requests = 0, connections = 0;
};

StoreServer make_store() {
  const rpc::RendezvousAccess access{.name = "", .run = "bench", .secret = "benchmark"};
  return StoreServer(rpc::launcher_port::identity_of(access, rpc::launcher_port::kStoreName),
                     rpc::transport::StreamFactory(), {});
}

Row measure(const Options& options, const std::string& part, int64_t ranks) {
  using test::ChildProcess;
  StoreServer store = make_store();
  std::vector<ChildProcess> workers;
  for (int64_t first = 0; first < ranks; first += options.per_process) {
    const WorkerOptions worker{.part = part,
                               .ranks = ranks,
                               .first = first,
                               .count = std::min(options.per_process, ranks - first),
                               .store_port = store.port(),
                               .one_by_one = options.one_by_one,
                               .heartbeat_ms = options.heartbeat.count()};
    workers.push_back(ChildProcess::spawn({.role = "worker", .args = worker.to_args()}));
  }

  const Deadline deadline = Deadline::after(kLimit);
  for (ChildProcess& worker : workers)
    if (worker.read_line(deadline) != "ready") throw Error(ErrorCode::kRemote, "a worker failed");
  const uint64_t published = store.stats().requests;
  for (ChildProcess& worker : workers)
    worker.write_line("go");

  Row row{.part = part, .ranks = ranks};
  for (ChildProcess& worker : workers) {
    const WorkerReport report = WorkerReport::from_line(worker.read_line(deadline));
    row.sum.seconds = std::max(row.sum.seconds, report.seconds);
    row.sum.rank_seconds += report.rank_seconds;
    row.sum.sockets += report.sockets;
    row.sum.descriptors += report.descriptors;
    row.sum.threads += report.threads;
    row.sum.mib += report.mib;
    row.sum.core_seconds += report.core_seconds;
  }
  row.requests = store.stats().requests - published;
  row.connections = store.counters().proven_control;

  for (ChildProcess& worker : workers)
    worker.write_line("end");
  for (ChildProcess& worker : workers)
    if (worker.wait(deadline) != 0) throw Error(ErrorCode::kRemote, "a worker did not end well");
  return row;
}

void print(const Options& options, const Row& row) {
  const auto ranks = static_cast<double>(row.ranks);
  const double sessions = row.part == "sessions" ? ranks / 2 * ranks / 2 : 0;
  const double session_ms = sessions > 0 ? row.sum.rank_seconds / sessions * 1000 : 0;
  const auto of_rank = [&](auto total) { return static_cast<double>(total) / ranks; };
  const char* format =
      options.json
          ? "{\"part\": \"%s\", \"ranks\": %lld, \"sessions\": %.0f, \"seconds\": %.3f, "
            "\"session_ms\": %.3f, \"core_seconds\": %.3f, \"store_requests\": %llu, "
            "\"store_connections\": %llu, "
            "\"sockets_a_rank\": %.1f, \"descriptors_a_rank\": %.1f, \"threads_a_rank\": %.1f, "
            "\"mib_a_rank\": %.2f}\n"
          : "%-9s %5lld ranks %6.0f sessions %8.2f s %8.2f ms each %8.2f core s %8llu requests "
            "%6llu "
            "connections; a rank: %7.1f sockets %7.1f descriptors %5.1f threads %7.2f MiB\n";
  std::printf(format, row.part.c_str(), static_cast<long long>(row.ranks), sessions,
              row.sum.seconds, session_ms, row.sum.core_seconds,
              static_cast<unsigned long long>(row.requests),
              static_cast<unsigned long long>(row.connections), of_rank(row.sum.sockets),
              of_rank(row.sum.descriptors), of_rank(row.sum.threads), of_rank(row.sum.mib));
  std::fflush(stdout);
}

std::vector<int64_t> numbers_of(const std::string& list) {
  std::vector<int64_t> numbers;
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');)
    numbers.push_back(std::stoll(item));
  return numbers;
}

Options parse(const std::vector<std::string>& args) {
  Options options;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto value = [&] {
      if (i + 1 >= args.size())
        throw Error(ErrorCode::kInvalidArgument, args[i] + " needs a value");
      return args[++i];
    };

    if (args[i] == "--json")
      options.json = true;
    else if (args[i] == "--one-by-one")
      options.one_by_one = true;
    else if (args[i] == "--part")
      options.parts = {value()};
    else if (args[i] == "--ranks")
      options.ranks = numbers_of(value());
    else if (args[i] == "--per-process")
      options.per_process = std::stoll(value());
    else if (args[i] == "--heartbeat")
      options.heartbeat = parse_duration(value());
    else
      throw Error(ErrorCode::kInvalidArgument,
                  "no option '" + args[i] + "'; the head of bench/scale_bench.cc lists them");
  }

  // Half of the ranks call the other half, so that there are as many of both.
  for (const int64_t ranks : options.ranks)
    if (ranks < 2 || ranks % 2 != 0)
      throw Error(ErrorCode::kInvalidArgument, "--ranks takes even numbers");
  if (options.per_process < 1)
    throw Error(ErrorCode::kInvalidArgument, "--per-process is at least 1");
  return options;
}

int run(const std::vector<std::string>& args) {
  const Options options = parse(args);
  for (const std::string& part : options.parts)
    for (const int64_t ranks : options.ranks)
      print(options, measure(options, part, ranks));
  return 0;
}

}  // namespace
}  // namespace retort::bench

int main(int argc, char** argv) {
  using namespace retort;
  try {
    bench::raise_descriptor_limit();
    if (test::spawned_role())
      return bench::run_worker(bench::WorkerOptions::from_args(test::spawned_args()));
    return bench::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "scale_bench: %s\n", e.what());
    return 1;
  }
}
