// Whether an agent keeps what it should have let go: memory, descriptors and threads of a server
// and of eight clients, over many calls and connections.
//   rpc_soak_bench [plain|tls] [scale]
//
// With scale 1 (minutes): a million small calls, 10,000 of 1 MiB, 10,000 connections, each of an
// agent of its own that asks once and closes. The default is a hundredth. Each part has 50 rounds,
// and all is quiet when a sample is taken after each. A line is fitted to the samples, without the
// first fifth, in which buffers fill; what it rises over all of them must be below the limits.
//
// Exit code 1 if something rises above its limit.
#include <ATen/ops/ones.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "rpc/agent.h"
#include "tests/support/process.h"

namespace retort {
namespace {

using namespace std::chrono_literals;
constexpr auto kWait = 120s;
constexpr int kClients = 8;
constexpr int kRounds = 50;
// Calls of a client that are under way. A server keeps the memory of as many large messages as ever
// came at a time: with a few, all of it is there before the samples count.
constexpr size_t kSmallWindow = 16, kLargeWindow = 2;
// What the fitted line may rise over a part, by scheduling and allocation alone.
constexpr double kMaxMib = 8, kMaxDescriptors = 2, kMaxThreads = 2;

struct Push {
  at::Tensor tensor;
  template <class A>
  void serialize(A& archive) {
    archive(tensor);
  }
};
inline constexpr rpc::Method<Push, Empty> kPush{"bench.push", true};

rpc::Agent::Options options(const std::string& name, const std::string& stream) {
  rpc::RpcOptions rpc;
  rpc.encryption = stream == "tls" ? rpc::Encryption::kAlways : rpc::Encryption::kNever;
  return {.name = name, .secret = "benchmark", .rpc = rpc};
}

int serve(const std::string& stream) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent(options("server/0", stream));
  agent.serve(kPush, queue, [](const Push&, const rpc::CallContext&) { return Empty{}; });
  std::cout << agent.address() << std::endl;
  std::thread stopper([&] {
    std::string line;
    std::getline(std::cin, line);
    queue->close();
  });
  while (!queue->closed())
    if (auto job = queue->pop(Deadline::after(1s))) (*job)();
  stopper.join();
  return 0;
}

// What a process has.
struct Sample {
  double mib = 0, descriptors = 0, threads = 0;
};

Sample sample_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const auto entries = [&](const char* name) {
    const std::filesystem::directory_iterator all(folder + name);
    return static_cast<double>(std::distance(begin(all), end(all)));
  };
  Sample sample{.mib = 0, .descriptors = entries("/fd"), .threads = entries("/task")};

  std::ifstream status(folder + "/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") status >> sample.mib;
  sample.mib /= 1024;  // from KiB
  return sample;
}

// The least of some, because connections and threads end a little after their agents.
Sample quiet_sample(pid_t pid) {
  Sample least = sample_of(pid);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(20ms);
    const Sample next = sample_of(pid);
    least = {.mib = next.mib,
             .descriptors = std::min(least.descriptors, next.descriptors),
             .threads = std::min(least.threads, next.threads)};
  }
  return least;
}

// By least squares, over places 0, 1, 2, ...
double slope(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, moment = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    moment += static_cast<double>(i) * values[i];
  }
  const double middle = (count - 1) / 2;
  return (moment - middle * sum) / (count * (count * count - 1) / 12);
}

struct Part {
  const char* name;
  int64_t each = 0;  // operations of a client in a round
  // Does so many operations as client `index`.
  std::function<void(int index, int64_t operations)> work;
  int64_t operations() const { return each * kClients * kRounds; }
};

// Prints a row; false if it is above the limit.
bool print_rise(const char* process, const char* what, const std::vector<double>& values,
                int64_t operations, double limit) {
  const double per_round = slope(values);
  const double rise = per_round * static_cast<double>(values.size());
  const double rounds_operations = static_cast<double>(operations) / kRounds;
  std::printf("  %-8s %-12s %10.1f -> %10.1f %14.6f per 1000 %10.2f of %g%s\n", process, what,
              values.front(), values.back(), per_round / rounds_operations * 1000, rise, limit,
              rise > limit ? "  TOO MUCH" : "");
  return rise <= limit;
}

bool print_rises(const char* process, const std::vector<Sample>& samples, int64_t operations) {
  const auto of = [&](double Sample::*member) {
    std::vector<double> values;
    for (size_t i = samples.size() / 5; i < samples.size(); ++i)
      values.push_back(samples[i].*member);
    return values;
  };
  const bool memory = print_rise(process, "RSS MiB", of(&Sample::mib), operations, kMaxMib);
  const bool descriptors =
      print_rise(process, "descriptors", of(&Sample::descriptors), operations, kMaxDescriptors);
  const bool threads =
      print_rise(process, "threads", of(&Sample::threads), operations, kMaxThreads);
  return memory && descriptors && threads;
}

// A round of all clients at a time; what one of them meets is thrown here.
void run_round(const Part& part) {
  std::vector<std::exception_ptr> errors(kClients);
  std::vector<std::thread> threads;
  for (int client = 0; client < kClients; ++client)
    threads.emplace_back([&, client] {
      try {
        part.work(client, part.each);
      } catch (...) {
        errors[static_cast<size_t>(client)] = std::current_exception();
      }
    });

  for (std::thread& thread : threads)
    thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

bool run_part(const Part& part, pid_t server) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Sample> servers, clients;
  for (int round = 0; round < kRounds; ++round) {
    run_round(part);
    servers.push_back(quiet_sample(server));
    clients.push_back(quiet_sample(::getpid()));
  }

  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s: %lld, %.1f s\n", part.name, static_cast<long long>(part.operations()),
              took.count());
  const bool server_fits = print_rises("server", servers, part.operations());
  const bool clients_fit = print_rises("clients", clients, part.operations());
  std::fflush(stdout);
  return server_fits && clients_fit;
}

void call_often(rpc::Agent& agent, const at::Tensor& tensor, int64_t calls) {
  const size_t window = tensor.defined() ? kLargeWindow : kSmallWindow;
  std::deque<Future<Empty>> under_way;
  const auto settle = [&](size_t left) {
    for (; under_way.size() > left; under_way.pop_front())
      under_way.front().get(Deadline::after(kWait));
  };
  for (int64_t i = 0; i < calls; ++i) {
    settle(window - 1);
    under_way.push_back(agent.call("server/0", kPush, {tensor}));
  }
  settle(0);
}

int run(const std::string& stream, double scale) {
  using test::ChildProcess;
  ChildProcess server = ChildProcess::spawn(
      {.role = {}, .args = {"--serve", stream}, .env = {}, .program = "/proc/self/exe"});
  const std::string address = server.read_line(Deadline::after(kWait));
  const auto each = [&](double full) {
    return std::max<int64_t>(1, std::llround(full * scale / kRounds / kClients));
  };
  const at::Tensor large = at::ones({1 << 20}, at::kByte);
  const auto name = [](int client) { return "client/" + std::to_string(client); };

  bool fits = true;
  {
    std::vector<std::unique_ptr<rpc::Agent>> agents;
    for (int client = 0; client < kClients; ++client) {
      agents.push_back(std::make_unique<rpc::Agent>(options(name(client), stream)));
      agents.back()->connect("server/0", address, Deadline::after(kWait));
    }
    const auto calls_of = [&](const at::Tensor& tensor) {
      return [&agents, tensor](int client, int64_t calls) {
        call_often(*agents[static_cast<size_t>(client)], tensor, calls);
      };
    };
    std::printf("columns: at the first and last sample; slope per 1000; rise of the line\n");
    fits &= run_part({"small calls", each(1e6), calls_of({})}, server.pid());
    fits &= run_part({"calls of 1 MiB", each(1e4), calls_of(large)}, server.pid());
  }

  const auto reconnect = [&](int client, int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      rpc::Agent agent(options(name(client), stream));
      agent.connect("server/0", address, Deadline::after(kWait));
      agent.call("server/0", kPush, {}).get(Deadline::after(kWait));
    }
  };
  fits &= run_part({"connections", each(1e4), reconnect}, server.pid());

  server.close_stdin();
  const int code = server.wait(Deadline::after(kWait));
  return code != 0 ? code : fits ? 0 : 1;
}

}  // namespace
}  // namespace retort

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "plain";
  if (first == "--serve") return retort::serve(argc > 2 ? argv[2] : "plain");
  const double scale = argc > 2 ? std::atof(argv[2]) : 0.01;
  if ((first != "plain" && first != "tls") || scale <= 0) {
    std::fprintf(stderr, "usage: rpc_soak_bench [plain|tls] [scale, 1 for all of it]\n");
    return 2;
  }
  try {
    return retort::run(first, scale);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rpc_soak_bench: %s\n", e.what());
    return 1;
  }
}
