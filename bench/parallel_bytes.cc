// Bytes on the wire, and the time of our reduce-scatter.
#include <ATen/ops/full.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/sizes.h"
#include "bench/parallel_bench.h"
#include "bench/parallel_traffic.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

using parallel::Layout;
using parallel::World;

constexpr Sizes kModel{
    .hidden = 256, .inner = 704, .layers = 4, .heads = 8, .kv_heads = 2, .vocab = 1024};
constexpr int64_t kSequences = 4;
constexpr int64_t kLength = 64;
constexpr int64_t kSteps = 4;
constexpr double kTolerance = 0.01;

struct Case {
  Layout layout;
  int64_t micro_batches = 2;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {.layout = {.tp = 2}},
      {.layout = {.tp = 4}},
      {.layout = {.tp = 2, .sequence_parallel = true}},
      {.layout = {.tp = 4, .sequence_parallel = true}},
      {.layout = {.pp = 2}, .micro_batches = 4},
      {.layout = {.dp = 2}},
      {.layout = {.dp = 2, .distributed_optimizer = true}},
      {.layout = {.dp = 4, .distributed_optimizer = true}},
      {.layout = {.tp = 2, .dp = 2}},
      {.layout = {.tp = 2, .pp = 2, .sequence_parallel = true}, .micro_batches = 4}};
  return all;
}

uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

// Bytes that the kernel has sent on this process's TCP connections, without those to the store and
// without what it had to send again.
int64_t tcp_bytes_sent(uint16_t store_port) {
  constexpr uint8_t kEstablished = 1;
  int64_t sum = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  RETORT_CHECK(folder != nullptr) << std::strerror(errno);
  while (const dirent* entry = ::readdir(folder)) {
    // What is no TCP socket has no TCP_INFO ("." and ".." read as 0).
    const int fd = std::atoi(entry->d_name);
    tcp_info info{};
    socklen_t size = sizeof info;
    if (fd == 0 || ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;

    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (info.tcpi_state != kEstablished ||
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0)
      continue;
    if (port_of(peer) != store_port)
      sum += to_int64(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  ::closedir(folder);
  return sum;
}

// tcp_bytes_sent() when every rank has sent all that belongs to the steps before.
int64_t settled_bytes(World& world) {
  world.all().barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const int64_t bytes = tcp_bytes_sent(world.options().store_port);
  world.all().barrier();
  return bytes;
}

StepSizes sizes_of(roles::Trainer& trainer, World& world, int64_t micro_batches) {
  StepSizes sizes{.layout = world.options().layout,
                  .at = world.coordinate(),
                  .tokens = kSequences * kLength,
                  .micro_batches = micro_batches};
  for (int64_t b = 0; b < trainer.buckets().num_buckets(); ++b)
    sizes.parameters += static_cast<double>(trainer.buckets().bucket_numel(to_size(b)));

  // They are summed in one tensor that has a slot for each set of copies.
  for (const parallel::NamedParameter& p : trainer.decoder().parameters())
    if (p.shard.partial_gradient && p.shard.copies > 1)
      sizes.partial_copies +=
          static_cast<double>(p.value.numel() * (sizes.layout.tp / p.shard.copies));
  return sizes;
}

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce: return "all-reduce";
    case Operation::kReduceScatter: return "reduce-scatter";
    case Operation::kAllGather: return "all-gather";
    case Operation::kMessage: return "message";
  }
  return "";
}

void say_terms(const std::vector<Traffic>& traffic) {
  for (const Traffic& item : traffic) {
    if (item.ranks == 1 || item.count == 0) continue;
    char line[256];
    std::snprintf(line, sizeof line,
                  "    %-46s %-14s %-6s %5.0f x %10.0f bytes over %lld: %11.0f sent",
                  item.what.c_str(), name_of(item.operation), item.group.c_str(), item.count,
                  item.bytes, static_cast<long long>(item.ranks), item.sent(Backend::kGloo));
    test::say(line);
  }
}

// Prints what one rank has said ("sent, and by formula: ours, c10d's, NCCL's"); whether it agrees.
bool print_rank(size_t rank, const std::string& line) {
  std::istringstream text(line);
  double sent = 0;
  double ours = 0;
  double c10d = 0;
  double nccl = 0;
  text >> sent >> ours >> c10d >> nccl;
  const double off = sent / ours - 1;
  std::printf("  %-5zu %14.0f %14.0f %7.2f%% %16.0f %14.0f\n", rank, sent, ours, 100 * off, c10d,
              nccl);
  return off > -kTolerance && off < kTolerance;
}

// Milliseconds of the rank that needs the longest for one operation that all begin at once.
double slowest_ms(parallel::Group& group, const std::function<void()>& operation) {
  using Clock = std::chrono::steady_clock;
  group.barrier();
  const auto start = Clock::now();
  operation();
  return group.all_reduce(std::chrono::duration<double, std::milli>(Clock::now() - start).count(),
                          parallel::ReduceOp::kMax);
}

}  // namespace

void bytes_rank() {
  const Case& c = cases().at(std::stoul(child_argument()));
  World world(child_world(c.layout));
  roles::Trainer trainer(
      models::Decoder::random(llama(kModel), 1, at::kFloat, models::Placement::of(world)), world,
      trainer_options(1 << 20));
  std::vector<models::PackedTokens> batches;
  for (int64_t i = 0; i < c.micro_batches; ++i)
    batches.push_back(batch_of(static_cast<uint64_t>(i * c.layout.dp + world.coordinate().dp),
                               kSequences, kLength, kModel.vocab));

  // The first step is not counted: it may send what only a first one does.
  train_step(trainer, world, batches);
  const int64_t before = settled_bytes(world);
  for (int64_t step = 0; step < kSteps; ++step)
    train_step(trainer, world, batches);
  const double sent =
      static_cast<double>(settled_bytes(world) - before) / static_cast<double>(kSteps);

  const std::vector<Traffic> traffic =
      step_traffic(llama(kModel), sizes_of(trainer, world, c.micro_batches));
  if (world.rank() == 0) say_terms(traffic);
  std::ostringstream line;
  line << std::fixed << sent;
  for (const Backend backend : {Backend::kGloo, Backend::kC10dGloo, Backend::kNccl})
    line << ' ' << total_sent(traffic, backend);
  test::say(line.str());
}

int measure_bytes() {
  std::printf(
      "bytes sent by each rank in a step; Llama, hidden %lld, inner %lld, %lld layers, %lld of "
      "%lld heads for keys, vocabulary %lld; micro-batches of %lld tokens\n",
      static_cast<long long>(kModel.hidden), static_cast<long long>(kModel.inner),
      static_cast<long long>(kModel.layers), static_cast<long long>(kModel.kv_heads),
      static_cast<long long>(kModel.heads), static_cast<long long>(kModel.vocab),
      static_cast<long long>(kSequences * kLength));

  bool ok = true;
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& c = cases()[i];
    std::printf("%s, %lld micro-batches; terms of rank 0:\n", name_of(c.layout).c_str(),
                static_cast<long long>(c.micro_batches));
    const std::vector<std::string> lines = run_ranks("bytes", c.layout, std::to_string(i));
    std::printf("  %-5s %14s %14s %8s %16s %14s\n", "rank", "kernel", "formula", "off",
                "c10d's Gloo", "NCCL");
    for (size_t rank = 0; rank < lines.size(); ++rank) {
      const bool rank_ok = print_rank(rank, lines[rank]);
      ok = ok && rank_ok;
    }
    std::fflush(stdout);
  }

  std::printf(ok ? "all within 1 %%\n" : "NOT within 1 %%\n");
  return ok ? 0 : 1;
}

void reduce_scatter_rank() {
  const int64_t ranks = std::stoll(child_argument());
  World world(child_world({.dp = ranks}));
  parallel::Group& group = world.all();
  for (const int64_t mib : {1, 16, 64}) {
    // In place: each rank's part of the sum replaces its part of the tensor.
    const int64_t count = mib << 18;
    at::Tensor in = at::full({count}, 1e-3, at::kFloat);
    at::Tensor out = in.narrow(0, group.rank() * (count / ranks), count / ranks);

    // The two alternate, so that both see the same machine.
    std::vector<double> ours, all_reduce;
    const int repetitions = mib == 1 ? 41 : 11;
    for (int i = 0; i < repetitions; ++i) {
      ours.push_back(slowest_ms(group, [&] { group.reduce_scatter(out, in); }));
      all_reduce.push_back(slowest_ms(group, [&] { group.all_reduce(in); }));
      in.fill_(1e-3);
    }

    std::ranges::sort(ours);
    std::ranges::sort(all_reduce);
    const auto median = [](const std::vector<double>& times) { return times[times.size() / 2]; };
    char line[160];
    std::snprintf(line, sizeof line, "%6lld %6lld %14.2f %14.2f %8.2f %14.2f %14.2f %8.2f",
                  static_cast<long long>(ranks), static_cast<long long>(mib), median(ours),
                  median(all_reduce), median(all_reduce) / median(ours), ours.front(),
                  all_reduce.front(), all_reduce.front() / ours.front());
    if (group.rank() == 0) test::say(line);
  }
}

int measure_reduce_scatter() {
  std::printf("milliseconds of the slowest rank, in turn\n%6s %6s %14s %14s %8s %14s %14s %8s\n",
              "ranks", "MiB", "reduce-scatter", "all-reduce", "ratio", "fastest", "fastest",
              "ratio");
  for (const int64_t ranks : {2, 4})
    std::printf("%s\n",
                run_ranks("reduce_scatter", {.dp = ranks}, std::to_string(ranks))[0].c_str());
  return 0;
}

}  // namespace retort::bench
