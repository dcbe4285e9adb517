// Round trips of rpc::Agent beside bare TensorPipe, Gloo, torch.distributed.rpc and memcpy, between
// two processes, in turns within one run.
//   rpc_bench [rounds, default 9] [milliseconds a turn, default 100]
// Each round has two processes of its own: where their memory lies, in huge pages or small ones,
// decides the rate of large messages by up to a third.
// RETORT_BENCH_PYTHON: a Python with torch, for torch.distributed.rpc; without it those two rows
// are left out.
//
// A round trip is a request with that many bytes (64: inside the request; more: a tensor) and an
// empty reply. The handler runs on the thread of a serving loop, as a teacher's does; nothing is
// pinned, all options are the defaults. "x8": eight on their way.
#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bench/rpc/agent_contestant.h"
#include "bench/rpc/bare_contestant.h"
#include "bench/rpc/contestant.h"
#include "bench/rpc/gloo_contestant.h"
#include "bench/rpc/rounds.h"
#include "bench/rpc/torch_contestant.h"
#include "roles/serving_loop.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

// A copy within this process, for the scale.
class MemcpyContestant final : public Contestant {
 public:
  explicit MemcpyContestant(Source from) : from_(std::move(from)) {}
  Turn run(int64_t bytes, int /*depth*/, int count) override {
    return keep_on_their_way(
        1, count,
        [&] {
          std::memcpy(to_.first(bytes).mutable_data_ptr(), from_.first(bytes).const_data_ptr(),
                      static_cast<size_t>(bytes));
        },
        [] {});
  }

 private:
  const Source from_, to_ = {};
};

// The answering process: says where each contestant is found, a line each.
int serve(const std::string& store_file) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  at::set_num_threads(1);
  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  const auto agents = serve_agents(queue);
  for (const auto& agent : agents)
    std::cout << agent->address() << std::endl;
  const BareServer with_cma(true), without_cma(false);
  std::cout << with_cma.url() << std::endl << without_cma.url() << std::endl;

  std::thread gloo([&] { serve_gloo(store_file); });
  std::thread stopper([&] {
    std::string line;
    std::getline(std::cin, line);
    queue->close();
  });
  roles::run_serving_loop(*queue, [] { return false; });
  gloo.join();
  stopper.join();
  return 0;
}

std::vector<Named> make_contestants(test::ChildProcess& server, const std::string& store_file) {
  const auto next_line = [&] { return server.read_line(Deadline::after(kWait)); };
  const Source source;
  std::vector<Named> contestants;
  for (const AgentKind& kind : kAgentKinds)
    contestants.push_back({kind.name, make_agent_contestant(kind, next_line(), source)});
  contestants.push_back({"uv cma", make_bare_contestant(true, next_line(), source)});
  contestants.push_back({"uv tcp", make_bare_contestant(false, next_line(), source)});
  contestants.push_back({"gloo", make_gloo_contestant(store_file, source)});
  if (const char* python = std::getenv("RETORT_BENCH_PYTHON"); python && *python) {
    contestants.push_back({"torch (shm, cma)", make_torch_contestant(python, "default")});
    contestants.push_back({"torch (uv, cma)", make_torch_contestant(python, "uv")});
  } else {
    std::fprintf(
        stderr,
        "torch.distributed.rpc is left out: RETORT_BENCH_PYTHON names no Python with torch "
        "(./dev goldens makes one)\n");
  }
  contestants.push_back({"memcpy", std::make_unique<MemcpyContestant>(source)});
  return contestants;
}

struct Options {
  int rounds = 9;
  double turn_seconds = 0.1;
};

struct Column {
  int64_t bytes;
  int depth;
  std::vector<Rounds> figures = {};  // by contestant
  bool small() const { return bytes <= kSmallBytes; }
  std::string title() const {
    const std::string size =
        small() ? std::to_string(bytes) + " B us" : std::to_string(bytes >> 20) + " MiB";
    return depth == 1 ? size : "x" + std::to_string(depth);
  }
};

void print_line(const std::string& name, const std::vector<std::string>& cells) {
  std::printf("| %-30s |", name.c_str());
  for (const std::string& cell : cells)
    std::printf(" %7s |", cell.c_str());
  std::printf("\n");
}

std::string number(double value, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

// Microseconds a call for small ones, GiB/s for the others.
std::string figure(const Column& column, size_t contestant) {
  const Rounds& rounds = column.figures[contestant];
  if (!column.small()) return number(median(rounds.bytes_per_second) / (1 << 30), 2);
  return number(column.depth == 1 ? median(rounds.p50_us) : 1e6 / median(rounds.calls_per_second),
                1);
}

// Of times for small calls (lower is better), of rates for the others (higher is better).
std::string ratio(const Column& column, size_t over, size_t under) {
  const Rounds &ours = column.figures[over], &theirs = column.figures[under];
  if (!column.small())
    return number(median_ratio(ours.bytes_per_second, theirs.bytes_per_second), 2);
  if (column.depth == 1) return number(median_ratio(ours.p50_us, theirs.p50_us), 2);
  return number(median_ratio(theirs.calls_per_second, ours.calls_per_second), 2);
}

// What all rounds of a run measured.
struct Results {
  std::vector<std::string> names;  // of the contestants
  std::vector<Column> columns;
  std::vector<std::optional<LoadedRounds>> loaded;  // by contestant
};

void print_figures(const Results& results) {
  const std::vector<Column>& columns = results.columns;
  std::vector<std::string> titles;
  for (const Column& column : columns)
    titles.push_back(column.title());
  print_line("us a call; GiB/s", titles);
  print_line("---", std::vector<std::string>(columns.size(), "---"));
  for (size_t i = 0; i < results.names.size(); ++i) {
    std::vector<std::string> cells;
    for (const Column& column : columns)
      cells.push_back(figure(column, i));
    print_line(results.names[i], cells);
  }
}

void print_ratios(const Results& results) {
  const auto place = [&](const std::string& name) {
    return static_cast<size_t>(std::ranges::find(results.names, name) - results.names.begin());
  };
  const std::pair<const char*, const char*> pairs[] = {{"retort cma", "uv cma"},
                                                       {"retort tcp", "uv tcp"},
                                                       {"retort tls, cma", "uv cma"},
                                                       {"retort tls, tcp", "uv tcp"},
                                                       {"retort tcp", "gloo"},
                                                       {"retort cma", "torch (shm, cma)"},
                                                       {"retort cma", "torch (uv, cma)"},
                                                       {"retort cma", "memcpy"}};
  for (const auto& [over, under] : pairs) {
    if (place(under) == results.names.size()) continue;
    std::vector<std::string> cells;
    for (const Column& column : results.columns)
      cells.push_back(ratio(column, place(over), place(under)));
    print_line(std::string(over) + " : " + under, cells);
  }
}

void print_loaded(const Results& results) {
  std::printf("\n64 B calls, one at a time, beside %d messages of 64 MiB on their way\n",
              kStreamDepth);
  print_line("", {"p50 us", "p99 us", "GiB/s"});
  print_line("---", {"---", "---", "---"});
  for (size_t i = 0; i < results.names.size(); ++i)
    if (const auto& rounds = results.loaded[i])
      print_line(
          results.names[i],
          {number(quantile(rounds->call_us, 0.5), 0), number(quantile(rounds->call_us, 0.99), 0),
           number(median(rounds->stream_bytes_per_second) / (1 << 30), 2)});
}

// One turn of each contestant at each size, between this process and one of its own.
void add_round(const Options& options, int round, Results& results) {
  const std::string store_file =
      std::filesystem::temp_directory_path() /
      ("rpc_bench-" + std::to_string(getpid()) + "-" + std::to_string(round));
  test::ChildProcess server = test::ChildProcess::spawn(
      {.role = {}, .args = {"--serve", store_file}, .env = {}, .program = "/proc/self/exe"});
  {
    const std::vector<Named> contestants = make_contestants(server, store_file);
    results.names.clear();
    for (const Named& named : contestants)
      results.names.push_back(named.name);
    for (Column& column : results.columns)
      add_round(contestants, column.bytes, column.depth, options.turn_seconds, column.figures);
    add_loaded_round(contestants, options.turn_seconds, results.loaded);
  }

  // This side closes before the server is told to end.
  server.close_stdin();
  if (const int code = server.wait(Deadline::after(kWait)); code != 0)
    throw Error(ErrorCode::kPeerLost, "the answering process ended with " + std::to_string(code));
  std::filesystem::remove(store_file);
}

void run(const Options& options) {
  at::set_num_threads(1);
  Results results;
  for (const int64_t bytes :
       {kSmallBytes, int64_t{1} << 20, int64_t{16} << 20, int64_t{64} << 20, kLargestBytes})
    for (const int depth : {1, 8})
      results.columns.push_back({bytes, depth});
  for (int round = 0; round < options.rounds; ++round)
    add_round(options, round, results);

  std::printf(
      "medians of %d rounds of %.0f ms for each; ratios: of times for 64 B, of rates "
      "above\n",
      options.rounds, options.turn_seconds * 1e3);
  print_figures(results);
  print_ratios(results);
  print_loaded(results);
}

}  // namespace
}  // namespace retort::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // the bare side has no protection of its own
  if (argc > 2 && std::strcmp(argv[1], "--serve") == 0) return retort::bench::serve(argv[2]);
  retort::bench::Options options;
  if (argc > 1) options.rounds = std::atoi(argv[1]);
  if (argc > 2) options.turn_seconds = std::atof(argv[2]) * 1e-3;
  if (options.rounds < 1 || options.turn_seconds <= 0) {
    std::fprintf(stderr, "usage: rpc_bench [rounds, from 1] [milliseconds a turn]\n");
    return 2;
  }
  try {
    retort::bench::run(options);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rpc_bench: %s\n", e.what());
    return 1;
  }
}
