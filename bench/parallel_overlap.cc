// What reducing gradients adds to the backward pass.
#include <ATen/TensorOperators.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "bench/parallel_bench.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

using parallel::GradBuckets;
using parallel::World;

constexpr Sizes kModel{
    .hidden = 320, .inner = 896, .layers = 5, .heads = 5, .kv_heads = 5, .vocab = 1024};
constexpr int64_t kSequences = 8;
constexpr int64_t kLength = 512;
constexpr int kRounds = 7;
constexpr double kMiB = 1048576;
constexpr double kTarget = 0.1;

struct Variant {
  double bucket_mib = 0;  // 0: gradients are not reduced
  bool overlap = true;
};
constexpr Variant kVariants[]{{0}, {0.25}, {1}, {4}, {16}, {40}, {40, false}};
constexpr size_t kNumVariants = std::size(kVariants);

// Wall-clock time, and processor time of all threads of this process.
struct Times {
  double wall = 0;
  double cpu = 0;
};

double seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The times of one backward pass of one rank, from the barrier after the forward pass until all
// gradients are there.
Times backward_times(const models::Decoder& decoder, World& world, parallel::Group& alone,
                     const Variant& variant) {
  const bool reduced = variant.bucket_mib > 0;
  GradBuckets buckets(
      decoder.parameters(), reduced ? world.dp() : alone,
      {.bucket_bytes = static_cast<int64_t>((reduced ? variant.bucket_mib : 40) * kMiB),
       .overlap = variant.overlap});
  buckets.begin_step();
  buckets.set_last_micro_batch(true);

  const models::PackedTokens tokens =
      batch_of(static_cast<uint64_t>(world.rank()), kSequences, kLength, kModel.vocab);
  const at::Tensor loss =
      losses::linear_cross_entropy(decoder.hidden(tokens), decoder.head_weight(), {},
                                   tokens.input_ids.roll({-1}))
          .loss_sum;

  world.all().barrier();
  const Times start{seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
  loss.backward();
  buckets.finish();
  return {seconds(CLOCK_MONOTONIC) - start.wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - start.cpu};
}

struct Summary {
  double median = 0;
  double fastest = 0;
};
Summary summary(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front()};
}

// The median of `values`, each relative to the one of the same round in `base`.
double median_ratio(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i)
    ratios.push_back(values[i] / base[i]);
  return summary(ratios).median;
}

}  // namespace

void overlap_rank() {
  World world(child_world({.dp = 2})), single({.role = "single"});
  models::Decoder decoder = models::Decoder::random(llama(kModel), 1, at::kFloat);
  decoder.set_requires_grad(true);
  backward_times(decoder, world, single.dp(), kVariants[0]);  // oneDNN compiles its kernels

  // The variants take turns, so that all see the same machine.
  std::vector<double> wall[kNumVariants], cpu[kNumVariants];
  for (int round = 0; round < kRounds; ++round)
    for (size_t v = 0; v < kNumVariants; ++v) {
      const Times times = backward_times(decoder, world, single.dp(), kVariants[v]);
      wall[v].push_back(world.all().all_reduce(times.wall) / 2);  // of both ranks
      cpu[v].push_back(world.all().all_reduce(times.cpu) / 2);
    }
  if (world.rank() != 0) return;

  double best = 1e9;
  for (size_t v = 0; v < kNumVariants; ++v) {
    const Variant& variant = kVariants[v];
    const double added = median_ratio(wall[v], wall[0]) - 1;
    const double added_fastest = summary(wall[v]).fastest / summary(wall[0]).fastest - 1;
    if (v > 0 && variant.overlap) best = std::min(best, added);

    const char* reduction = variant.overlap ? "overlapped" : "at end";
    if (v == 0) reduction = "none";
    char line[160];
    std::snprintf(line, sizeof line, "%8.2f %10s %12.1f %12.1f %11.2f%% %11.2f%% %11.2f%%",
                  variant.bucket_mib, reduction, 1e3 * summary(wall[v]).median,
                  1e3 * summary(wall[v]).fastest, 100 * added, 100 * added_fastest,
                  100 * (median_ratio(cpu[v], cpu[0]) - 1));
    test::say(line);
  }
  test::say(std::to_string(best));
}

int measure_overlap() {
  std::printf(
      "backward of two data-parallel ranks, %lld tokens a rank, mean of the ranks, %d rounds; "
      "added: median of a round's ratio to its run without reduction, ratio of the fastest, median "
      "for processor time\n",
      static_cast<long long>(kSequences * kLength), kRounds);
  std::printf("%8s %10s %12s %12s %12s %12s %12s\n", "MiB", "reduction", "median ms", "fastest ms",
              "added", "fastest", "processor");
  const double best = std::stod(run_ranks("overlap", {.dp = 2}, "-")[0]);
  std::printf("best bucket size: %.2f %% added\n", 100 * best);
  return best < kTarget ? 0 : 1;
}

}  // namespace retort::bench
