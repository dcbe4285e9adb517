// Peak memory of training steps against models::estimate_training_memory.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "bench/parallel_bench.h"
#include "models/memory/memory_estimate.h"
#include "tests/models/own_tensors.h"
#include "tests/support/memory/peak_memory.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

using parallel::Layout;
using parallel::World;

constexpr Sizes kModel{
    .hidden = 512, .inner = 1408, .layers = 6, .heads = 8, .kv_heads = 4, .vocab = 8192};
constexpr int64_t kSequences = 4;
constexpr int64_t kLength = 384;
constexpr int64_t kSteps = 2;
constexpr double kTolerance = 0.1;
constexpr double kMiB = 1048576;

struct Case {
  Layout layout;
  int64_t micro_batches = 1;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{{.layout = {}},
                                     {.layout = {.tp = 2}},
                                     {.layout = {.tp = 2, .sequence_parallel = true}},
                                     {.layout = {.pp = 2}, .micro_batches = 2},
                                     {.layout = {.dp = 2}},
                                     {.layout = {.dp = 2, .distributed_optimizer = true}}};
  return all;
}

// How each case is run.
struct Variant {
  bool half = false;  // in bfloat16
  bool checkpointing = false;

  at::ScalarType dtype() const { return half ? at::kBFloat16 : at::kFloat; }
  std::string name() const {
    return std::string(half ? ", bf16" : "") + (checkpointing ? ", checkpointing" : "");
  }
};
constexpr Variant kVariants[]{
    {}, {.checkpointing = true}, {.half = true}, {.half = true, .checkpointing = true}};

models::TrainingSizes sizes_of(const Case& c, int64_t stage, const Variant& variant) {
  return {.layout = c.layout,
          .stage = stage,
          .tokens = kSequences * kLength,
          .micro_batches = c.micro_batches,
          .dtype_bytes = variant.half ? 2 : 4,
          .gradient_checkpointing = variant.checkpointing,
          .sequences = kSequences};
}

// Bytes of a line of /proc/self/status.
double status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with(key + ":")) return 1024 * std::stod(line.substr(key.size() + 1));
  throw Error(ErrorCode::kUnavailable, "/proc/self/status has no such line").with("key", key);
}

// Prints what one rank has said (see memory_rank()). Whether the plan agrees with its peak, and the
// peak is large enough to tell.
bool print_rank(const std::string& name, size_t rank, const std::string& line) {
  std::istringstream text(line);
  double peak = 0;
  double live = 0;
  double rss = 0;
  double plan = 0;
  double always = 0;
  double activations = 0;
  double temporary = 0;
  text >> peak >> live >> rss >> plan >> always >> activations >> temporary;
  const double off = plan / peak - 1;
  std::printf("%-32s %4zu %9.1f %9.1f %7.1f%% %9.1f %9.1f %9.1f %9.1f %12.1f\n", name.c_str(), rank,
              peak / kMiB, plan / kMiB, 100 * off, live / kMiB, always / kMiB, activations / kMiB,
              temporary / kMiB, rss / kMiB);
  return off > -kTolerance && off < kTolerance && peak >= 100e6;
}

}  // namespace

void memory_rank() {
  std::istringstream argument(child_argument());
  size_t index = 0;
  Variant variant;
  argument >> index >> variant.half >> variant.checkpointing;
  const Case& c = cases().at(index);
  World world(child_world(c.layout));

  // What is counted begins here: model, optimizer and steps.
  const double idle = status_bytes("VmRSS");
  const test::PeakMemory memory;
  models::Decoder decoder = models::own_tensors(
      models::Decoder::random(llama(kModel), 1, variant.dtype(), models::Placement::of(world)));
  decoder.set_gradient_checkpointing(variant.checkpointing);
  roles::Trainer trainer(std::move(decoder), world, trainer_options(40 << 20));
  std::vector<models::PackedTokens> batches;
  for (int64_t i = 0; i < c.micro_batches; ++i)
    batches.push_back(batch_of(static_cast<uint64_t>(i * c.layout.dp + world.coordinate().dp),
                               kSequences, kLength, kModel.vocab));
  for (int64_t step = 0; step < kSteps; ++step)
    train_step(trainer, world, batches);

  const models::TrainingMemory plan =
      models::estimate_training_memory(llama(kModel), sizes_of(c, world.coordinate().pp, variant));
  std::ostringstream line;
  line << std::fixed << memory.peak_bytes() << ' ' << memory.live_bytes() << ' '
       << status_bytes("VmHWM") - idle << ' ' << plan.peak() << ' ' << plan.always() << ' '
       << plan.activations << ' ' << plan.temporary;
  test::say(line.str());
}

int measure_memory() {
  std::printf(
      "MiB of a rank; Llama, hidden %lld, inner %lld, %lld layers, %lld of %lld heads for keys, "
      "vocabulary %lld; micro-batches of %lld tokens\n",
      static_cast<long long>(kModel.hidden), static_cast<long long>(kModel.inner),
      static_cast<long long>(kModel.layers), static_cast<long long>(kModel.kv_heads),
      static_cast<long long>(kModel.heads), static_cast<long long>(kModel.vocab),
      static_cast<long long>(kSequences * kLength));
  std::printf("%-32s %4s %9s %9s %8s %9s %9s %9s %9s %12s\n", "layout", "rank", "peak", "plan",
              "off", "after", "always", "kept", "beside", "RSS - idle");

  bool ok = true;
  for (const Variant& variant : kVariants)
    for (size_t i = 0; i < cases().size(); ++i) {
      const Case& c = cases()[i];
      const std::vector<std::string> lines = run_ranks(
          "memory", c.layout,
          std::to_string(i) + (variant.half ? " 1" : " 0") + (variant.checkpointing ? " 1" : " 0"));
      const std::string name = name_of(c.layout) + variant.name();
      for (size_t rank = 0; rank < lines.size(); ++rank) {
        const bool rank_ok = print_rank(name, rank, lines[rank]);
        ok = ok && rank_ok;
      }
      std::fflush(stdout);
    }

  std::printf(ok ? "all within 10 %%\n" : "NOT within 10 %%\n");
  return ok ? 0 : 1;
}

}  // namespace retort::bench
