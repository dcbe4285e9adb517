// Weights of a 100M-parameter model pushed from a trainer to a generator in another process, beside
// 64 MiB messages between the same two.
//   weight_sync_bench [tokenizer folder, default tests/recipes/goldens/qwen3] [pushes, default 15]
//
// A push is everything that a training step waits for: checksums, buckets of 64 MiB, the
// generator's check and copy, the commit's reply.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "models/checkpoint.h"
#include "roles/generator/client.h"
#include "roles/generator/server.h"
#include "roles/serving_loop.h"
#include "tests/support/process.h"

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
inline constexpr rpc::Method<Push, Empty> kPush{"bench.push", true};

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
  agent.serve(kPush, queue, [](const Push&, const rpc::CallContext&) { return Empty{}; });
  std::cout << agent.address() << std::endl;
  std::thread stopper([&] {
    std::string line;
    std::getline(std::cin, line);
    queue->close();
  });
  roles::run_serving_loop(
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

struct Measured {
  uint64_t push_bytes = 0;
  // Seconds of each push, of its transfer alone, and of each 64 MiB message.
  std::vector<double> pushes, transfers, messages;
};

// Pushes and messages alternate, so that both see the same machine.
Measured measure(rpc::Agent& agent, roles::GeneratorClient& client, const models::Decoder& student,
                 int pushes) {
  Measured measured;
  const at::Tensor message = at::ones({int64_t{64} << 20}, at::kByte);
  for (int i = 0; i < pushes; ++i) {
    measured.pushes.push_back(seconds([&] {
      roles::PendingPush push =
          client.push(student, static_cast<uint64_t>(i) + 1, int64_t{64} << 20, false);
      measured.push_bytes = push.bytes;
      measured.transfers.push_back(push.seconds);
      client.wait_pushed(std::move(push));
    }));
    for (int j = 0; j < 6; ++j)
      measured.messages.push_back(
          seconds([&] { agent.call("generator/0", kPush, {message}).get(Deadline::after(60s)); }));
  }
  return measured;
}

void report(const Measured& measured) {
  const double gib = static_cast<double>(measured.push_bytes) / (1 << 30);
  const double push_rate = gib / median(measured.pushes);
  const double transfer_rate = gib / median(measured.transfers);
  const double message_rate = 64.0 / 1024 / median(measured.messages);
  std::printf("%.1f M parameters, %.3f GiB\n", static_cast<double>(measured.push_bytes) / 4e6, gib);
  std::printf("%-34s %8.2f GiB/s\n", "64 MiB messages, one at a time", message_rate);
  std::printf("%-34s %8.2f GiB/s   ratio %.2f\n", "push: checksums and transfer", transfer_rate,
              transfer_rate / message_rate);
  std::printf("%-34s %8.2f GiB/s   ratio %.2f\n", "push until the weights are in use", push_rate,
              push_rate / message_rate);
}

int run(const std::string& folder, int pushes) {
  using test::ChildProcess;
  at::set_num_threads(1);
  ChildProcess generator = ChildProcess::spawn(
      {.role = {}, .args = {"--serve", folder}, .env = {}, .program = "/proc/self/exe"});
  const models::Decoder student = model(folder, 2);
  const std::string address = generator.read_line(Deadline::after(5min));

  {
    rpc::Agent agent(options("student/0"));
    agent.connect("generator/0", address, Deadline::after(60s));
    roles::GeneratorClient client(agent, {.role = "generator", .peers = {"generator/0"}},
                                  models::Tokenizer::load(folder), student);
    report(measure(agent, client, student, pushes));
  }

  // This side closes before the generator is told to end.
  generator.close_stdin();
  return generator.wait(Deadline::after(60s));
}

}  // namespace
}  // namespace retort

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "tests/recipes/goldens/qwen3";
  if (first == "--serve") return retort::serve(argv[2]);
  try {
    return retort::run(first, argc > 2 ? std::atoi(argv[2]) : 15);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "weight_sync_bench: %s\n", e.what());
    return 1;
  }
}
