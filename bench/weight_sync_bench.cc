// Weights of a 100M-parameter model pushed from a trainer to a generator in another process, beside
// large messages between the same two, in turns within one run; and what the parts of a push take.
//   weight_sync_bench [tokenizer folder, default tests/recipes/goldens/qwen3] [rounds, default 15]
//                     [MiB of a bucket, default 64]
//
// A push is everything that a training step waits for: checksums, buckets of 64 MiB, the
// generator's check, the commit's reply. With links it also keeps a copy, for a generator that is
// started again. A message of one buffer finds its bytes in the cache; those over as much memory as
// a push has do not.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "roles/generator/client.h"
#include "roles/generator/server.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "roles/serving_loop.h"
#include "rpc/peer_links.h"
#include "tests/support/process.h"

namespace retort {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Push {
  at::Tensor tensor;
  template <class A>
  void serialize(A& archive) {
    archive(tensor);
  }
};
inline constexpr rpc::Method<Push, Empty> kPush{"bench.push", true};
inline constexpr rpc::Method<roles::WeightBucket, Empty> kBucket{"bench.bucket", true};

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
  agent.serve(kBucket, queue,
              [](const roles::WeightBucket&, const rpc::CallContext&) { return Empty{}; });
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

constexpr int64_t kMessageBytes = int64_t{64} << 20;
constexpr size_t kMessages = 6;  // of a round: as many bytes as a push has, about

// Seconds of each round, under the name of what took them.
using Rounds = std::map<std::string, std::vector<double>>;

// Everything that is measured, between this process and the generator.
class Rows {
 public:
  Rows(rpc::Agent& agent, rpc::PeerLinks& links, const std::string& folder, int64_t bucket_bytes)
      : agent_(agent),
        bucket_bytes_(bucket_bytes),
        student_(model(folder, 2)),
        plain_(client(folder, nullptr)),
        keeping_(client(folder, &links)) {
    for (size_t i = 0; i < kMessages; ++i)
      messages_.push_back(at::ones({kMessageBytes}, at::kByte));
    const std::vector<roles::WeightSlice> all = roles::weight_slices(student_);
    buckets_ = roles::make_weight_buckets(student_, all, 1, bucket_bytes_);
    uint64_t running = 0;
    for (roles::WeightBucket& bucket : buckets_) {
      running = roles::seal(bucket, running);
      for (const roles::WeightPart& part : bucket.parts)
        bytes_ += static_cast<double>(part.values.nbytes());
    }
  }

  void measure_round() {
    push(*plain_, "push");
    add("messages, one buffer", message_seconds(1, 1));
    push(*keeping_, "push with a kept copy");
    add("messages, as much memory", message_seconds(kMessages, 1));
    add("messages, as much memory, in flight", message_seconds(kMessages, kMessages));
    add("part: buckets", seconds([&] { send(kBucket, false); }));
    add("part: buckets, checksums here", seconds([&] { send(kBucket, true); }));
    ++version_;  // staged there, and thrown away for the next push
    add("part: buckets, checksums there", seconds([&] { send(roles::kWeightsBucket, false); }));
    add("part: checksums, of one end", seconds([&] {
          uint64_t running = 0;
          for (roles::WeightBucket& bucket : buckets_)
            running = roles::seal(bucket, running);
        }));
    add("part: a copy in fresh memory", seconds([&] {
          std::vector<at::Tensor> copies;
          for (const roles::WeightBucket& bucket : buckets_)
            for (const roles::WeightPart& part : bucket.parts)
              copies.push_back(part.values.clone());
        }));
  }

  void forget() { rounds_.clear(); }
  double bytes() const { return bytes_; }
  const Rounds& rounds() const { return rounds_; }

 private:
  std::unique_ptr<roles::GeneratorClient> client(const std::string& folder, rpc::PeerLinks* links) {
    return std::make_unique<roles::GeneratorClient>(
        agent_,
        roles::GeneratorClient::Options{
            .role = "generator", .peers = {"generator/0"}, .links = links, .patience = 60s},
        models::Tokenizer::load(folder), student_);
  }
  void add(const std::string& name, double seconds) { rounds_[name].push_back(seconds); }

  void push(roles::GeneratorClient& client, const std::string& name) {
    const auto start = Clock::now();
    roles::PendingPush pending = client.push(student_, ++version_, bucket_bytes_, false);
    const double transferred = pending.seconds;
    client.wait_pushed(std::move(pending));
    add(name, std::chrono::duration<double>(Clock::now() - start).count());
    add(name + ", until it has arrived", transferred);
  }

  void send(const rpc::Method<roles::WeightBucket, Empty>& method, bool with_checksums) {
    std::deque<Future<Empty>> replies;
    uint64_t running = 0;
    for (roles::WeightBucket& bucket : buckets_) {
      bucket.version = version_;
      if (with_checksums) running = roles::seal(bucket, running);
      replies.push_back(agent_.call("generator/0", method, bucket));
    }
    for (Future<Empty>& reply : replies)
      reply.get(Deadline::after(60s));
  }

  // As long as the bytes of a push would take.
  double message_seconds(size_t buffers, size_t in_flight) {
    const double took = seconds([&] {
      std::deque<Future<Empty>> replies;
      for (size_t i = 0; i < kMessages; ++i) {
        if (replies.size() == in_flight) {
          replies.front().get(Deadline::after(60s));
          replies.pop_front();
        }
        replies.push_back(agent_.call("generator/0", kPush, {messages_[i % buffers]}));
      }
      for (Future<Empty>& reply : replies)
        reply.get(Deadline::after(60s));
    });
    return took * bytes_ / static_cast<double>(kMessages * kMessageBytes);
  }

  rpc::Agent& agent_;
  const int64_t bucket_bytes_;
  models::Decoder student_;
  std::unique_ptr<roles::GeneratorClient> plain_, keeping_;
  std::vector<at::Tensor> messages_;
  std::vector<roles::WeightBucket> buckets_;
  double bytes_ = 0;
  uint64_t version_ = 0;
  Rounds rounds_;
};

void report(const Rows& rows) {
  const auto& base = rows.rounds().at("messages, one buffer");
  const auto& cold = rows.rounds().at("messages, as much memory");
  std::printf("%.1f M parameters, %.3f GiB, medians of %zu rounds\n", rows.bytes() / 4e6,
              rows.bytes() / (1 << 30), base.size());
  std::printf("| %-36s | ms | GiB/s | : one buffer | : as much memory |\n|---|---|---|---|---|\n",
              "");
  for (const auto& [name, times] : rows.rounds()) {
    std::vector<double> to_base, to_cold;
    for (size_t i = 0; i < times.size(); ++i) {
      to_base.push_back(base[i] / times[i]);
      to_cold.push_back(cold[i] / times[i]);
    }
    std::printf("| %-36s | %6.1f | %5.2f | %5.2f | %5.2f |\n", name.c_str(), median(times) * 1e3,
                rows.bytes() / (1 << 30) / median(times), median(to_base), median(to_cold));
  }
}

int run(const std::string& folder, int rounds, int64_t bucket_mib) {
  using test::ChildProcess;
  at::set_num_threads(1);
  ChildProcess generator = ChildProcess::spawn(
      {.role = {}, .args = {"--serve", folder}, .env = {}, .program = "/proc/self/exe"});
  const std::string address = generator.read_line(Deadline::after(5min));

  {
    rpc::Agent agent(options("student/0"));
    rpc::PeerLinks links(agent, {.find = [&](const std::string&, Deadline) { return address; }});
    links.keep("generator/0", Deadline::after(60s));
    Rows rows(agent, links, folder, bucket_mib << 20);
    rows.measure_round();
    rows.forget();  // the first use of memory
    for (int i = 0; i < rounds; ++i)
      rows.measure_round();
    report(rows);
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
    return retort::run(first, argc > 2 ? std::atoi(argv[2]) : 15,
                       argc > 3 ? std::atoi(argv[3]) : 64);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "weight_sync_bench: %s\n", e.what());
    return 1;
  }
}
