// Weights of a 100M-parameter model pushed from a trainer to a generator in another process, beside
// 64 MiB messages between the same two.
//   weight_sync_bench [tokenizer folder, default tests/recipes/goldens/qwen3] [pushes, default 15]
// A push is everything that a training step waits for: checksums, buckets of 64 MiB, the
// generator's check and copy, the commit's reply.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "models/checkpoint.h"
#include "roles/generator.h"
#include "roles/generator_client.h"
#include "roles/host.h"

extern char** environ;

namespace retort {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Push {
  at::Tensor tensor;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(tensor);
  }
};
inline constexpr rpc::Method<Push, rpc::Empty> kPush{"bench.push", true};

// About 100 million parameters: 12 layers of 768 with a vocabulary of 16,384.
models::Decoder model(const std::string& folder, uint64_t seed) {
  models::ModelConfig config = models::read_model_config(folder);
  config.vocab_size = 16384;
  config.hidden_size = 768;
  config.intermediate_size = 2048;
  config.num_hidden_layers = 12;
  config.num_attention_heads = config.num_key_value_heads = 12;
  config.head_dim = 64;
  config.sliding_window.assign(12, 0);
  return models::Decoder::random(config, seed, at::kFloat);
}

rpc::Agent::Options options(const std::string& name) {
  return {.name = name, .secret = "benchmark"};
}

int serve(const std::string& folder) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  at::set_num_threads(1);
  roles::Generator generator("generator/0", model(folder, 1), models::Tokenizer::load(folder),
                             {.kv_cache_bytes = 16 << 20});
  auto queue = std::make_shared<rpc::HandlerQueue>(256);
  rpc::Agent agent(options("generator/0"));
  generator.serve(agent, queue);
  agent.serve(kPush, queue, [](const Push&, const rpc::CallContext&) { return rpc::Empty{}; });
  std::cout << agent.address() << std::endl;
  std::thread stopper([&] {
    std::string line;
    std::getline(std::cin, line);
    queue->close();
  });
  roles::host(
      *queue, [] { return false; }, {}, [&] { return generator.work(); });
  stopper.join();
  return 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Fn>
double seconds(Fn fn) {
  const auto start = Clock::now();
  fn();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int run(const std::string& folder, int pushes, const char* program) {
  at::set_num_threads(1);
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) return 1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, in[1]);
  std::string name = program, role = "--serve", arg = folder;
  char* argv[] = {name.data(), role.data(), arg.data(), nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv, environ) != 0) return 1;
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  const models::Decoder student = model(folder, 2);
  FILE* lines = fdopen(out[0], "r");
  char address[256] = {};
  if (!fgets(address, sizeof address, lines)) return 1;
  address[strcspn(address, "\n")] = 0;
  {
    rpc::Agent agent(options("student/0"));
    agent.connect("generator/0", address, Deadline::after(60s));
    roles::GeneratorClient client(agent, {.role = "generator", .peers = {"generator/0"}},
                                  models::Tokenizer::load(folder), student);
    const at::Tensor message = at::ones({int64_t{64} << 20}, at::kByte);
    std::vector<double> push_seconds, transfer_seconds, message_seconds;
    uint64_t bytes = 0;
    for (int i = 0; i < pushes; ++i) {  // alternates, so that both see the same machine
      push_seconds.push_back(seconds([&] {
        roles::PendingPush push =
            client.push(student, static_cast<uint64_t>(i) + 1, int64_t{64} << 20, false);
        bytes = push.bytes;
        transfer_seconds.push_back(push.seconds);
        client.wait_pushed(std::move(push));
      }));
      for (int j = 0; j < 6; ++j)
        message_seconds.push_back(seconds(
            [&] { agent.call("generator/0", kPush, {message}).get(Deadline::after(60s)); }));
    }
    const double size = static_cast<double>(bytes) / (1 << 30);
    const double push_rate = size / median(push_seconds),
                 transfer = size / median(transfer_seconds);
    const double message_rate = 64.0 / 1024 / median(message_seconds);
    std::printf("%.1f M parameters, %.3f GiB\n", static_cast<double>(bytes) / 4e6, size);
    std::printf("%-34s %8.2f GiB/s\n", "64 MiB messages, one at a time", message_rate);
    std::printf("%-34s %8.2f GiB/s   ratio %.2f\n", "push: checksums and transfer", transfer,
                transfer / message_rate);
    std::printf("%-34s %8.2f GiB/s   ratio %.2f\n", "push until the weights are in use", push_rate,
                push_rate / message_rate);
  }
  close(in[1]);
  int status = 0;
  waitpid(child, &status, 0);
  fclose(lines);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace retort

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "tests/recipes/goldens/qwen3";
  if (first == "--serve") return retort::serve(argv[2]);
  return retort::run(first, argc > 2 ? std::atoi(argv[2]) : 15, argv[0]);
}
