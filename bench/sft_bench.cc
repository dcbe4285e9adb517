// Supervised training steps of a random Qwen3 in one process: tokens/s, model FLOPs utilisation,
// peak memory beside the plan.
//   sft_bench --device cuda --dtype bfloat16                    about 1.1 billion parameters, 2
//       sequences of 4,096 tokens a step
//   sft_bench --hidden 256 --inner 768 --layers 4 --heads 4 --kv_heads 2 --vocab 8192 --length 512
//       something for a CPU
// On a CPU the peak rate is that of its own matrix product, measured first; on a device it is the
// data sheet's: --peak_tflops.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/sizes.h"
#include "models/checkpoint/checkpoint.h"
#include "models/memory/memory_estimate.h"
#include "parallel/device_module.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "roles/trainer/trainer.h"
#include "tests/support/memory/peak_memory.h"

namespace retort::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string device = "cpu";
  std::string dtype = "float32";
  int64_t hidden = 2048;
  int64_t inner = 6144;
  int64_t layers = 16;
  int64_t heads = 16;
  int64_t kv_heads = 8;
  int64_t head_dim = 128;
  int64_t vocab = 151936;
  int64_t length = 4096;
  int64_t sequences = 2;
  int64_t micro_batches = 1;
  int64_t steps = 10;
  int64_t warmup = 3;
  int64_t threads = 1;
  int64_t checkpointing_every = 0;
  double peak_tflops = 989;  // dense bf16 of one H200 (its data sheet)
  std::string profile;       // a file
};

void read(CLI::App& app, Options& o) {
  app.add_option("--device", o.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--dtype", o.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--peak_tflops", o.peak_tflops, "of the device in this dtype; not used on a CPU");
  app.add_option("--profile", o.profile,
                 "writes what the device did in one more step, as a trace for chrome://tracing");
  app.add_option("--checkpointing_every", o.checkpointing_every,
                 "recompute every n-th layer; 0: none");
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, int64_t*>>{{"--hidden", &o.hidden},
                                                     {"--inner", &o.inner},
                                                     {"--layers", &o.layers},
                                                     {"--heads", &o.heads},
                                                     {"--kv_heads", &o.kv_heads},
                                                     {"--head_dim", &o.head_dim},
                                                     {"--vocab", &o.vocab},
                                                     {"--length", &o.length},
                                                     {"--sequences", &o.sequences},
                                                     {"--micro_batches", &o.micro_batches},
                                                     {"--steps", &o.steps},
                                                     {"--warmup", &o.warmup},
                                                     {"--threads", &o.threads}})
    app.add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
}

models::ModelConfig qwen3(const Options& o) {
  models::ModelConfig config;
  config.family = models::Family::kQwen3;
  config.vocab_size = o.vocab;
  config.hidden_size = o.hidden;
  config.intermediate_size = o.inner;
  config.num_hidden_layers = o.layers;
  config.num_attention_heads = o.heads;
  config.num_key_value_heads = o.kv_heads;
  config.head_dim = o.head_dim;
  config.qk_norm = true;
  config.tie_word_embeddings = true;
  config.sliding_window.assign(to_size(o.layers), 0);
  return config;
}

models::PackedTokens batch(const Options& o, int64_t number) {
  std::vector<std::vector<int32_t>> rows(to_size(o.sequences));
  uint64_t state = static_cast<uint64_t>(number) + 1;
  for (auto& row : rows)
    for (int64_t i = 0; i < o.length; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      row.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(o.vocab)));
    }
  return models::pack_rows(rows);
}

// FLOP/s of a square product in the bench's own dtype.
double measured_rate(at::ScalarType dtype) {
  constexpr int64_t kSize = 1024;
  const at::Tensor a = at::ones({kSize, kSize}, dtype);
  const at::Tensor b = at::ones({kSize, kSize}, dtype);
  double best = 1e300;
  for (int i = 0; i < 8; ++i) {
    const auto start = Clock::now();
    at::mm(a, b);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best;
}

// Of one step: by the clock, and of the processor on all threads of this process, which says more
// than the clock does on a machine that others use too.
struct StepTime {
  double wall = 0;
  double cpu = 0;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

StepTime time_of_step(roles::Trainer& trainer, const std::vector<models::PackedTokens>& batches) {
  const auto start = Clock::now();
  const double cpu_start = cpu_seconds();
  double count = 0;
  trainer.begin_step();
  for (size_t i = 0; i < batches.size(); ++i) {
    const at::Tensor hidden = trainer.hidden(batches[i]);
    const at::Tensor targets = batches[i].input_ids.roll({-1});
    const models::Head head = trainer.decoder().head();
    const at::Tensor loss =
        losses::linear_cross_entropy(hidden, head.weight, {}, targets, 0, head.vocab).loss_sum;
    count += static_cast<double>(targets.numel());
    trainer.backward(loss, i + 1 == batches.size());
  }
  trainer.finish_step(count);
  // Reading one parameter waits for all that was queued before.
  trainer.decoder().parameters().back().value.flatten().narrow(0, 0, 1).cpu();
  return {.wall = std::chrono::duration<double>(Clock::now() - start).count(),
          .cpu = cpu_seconds() - cpu_start};
}

// Seconds of the measured steps, sorted each.
struct StepTimes {
  std::vector<double> wall;
  std::vector<double> cpu;
};

StepTimes timed_steps(roles::Trainer& trainer, const Options& o) {
  std::vector<models::PackedTokens> batches;
  for (int64_t i = 0; i < o.micro_batches; ++i)
    batches.push_back(batch(o, i));

  StepTimes times;
  for (int64_t i = 0; i < o.warmup + o.steps; ++i) {
    const StepTime step = time_of_step(trainer, batches);
    if (i < o.warmup) continue;
    times.wall.push_back(step.wall);
    times.cpu.push_back(step.cpu);
  }
  std::sort(times.wall.begin(), times.wall.end());
  std::sort(times.cpu.begin(), times.cpu.end());
  return times;
}

void profile_step(roles::Trainer& trainer, const Options& o) {
  namespace profiler = torch::autograd::profiler;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  const std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU,
                                                    profiler::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  time_of_step(trainer, {batch(o, 0)});
  profiler::disableProfiler()->save(o.profile);
}

// Bytes that models::estimate_training_memory expects.
int64_t planned_bytes(const models::ModelConfig& config, const parallel::Layout& layout,
                      at::ScalarType dtype, const Options& o) {
  return models::estimate_training_memory(
             config, {.layout = layout,
                      .tokens = o.sequences * o.length,
                      .micro_batches = o.micro_batches,
                      .dtype_bytes = to_int64(c10::elementSize(dtype)),
                      .gradient_checkpointing = o.checkpointing_every > 0,
                      .gradient_checkpointing_every = std::max<int64_t>(1, o.checkpointing_every)})
      .peak();
}

// `peak_rate`: FLOP/s.
void report_rate(const models::ModelConfig& config, const Options& o, const StepTimes& times,
                 double peak_rate) {
  const std::vector<double>& seconds = times.wall;
  const double median = seconds[seconds.size() / 2];
  const double tokens = static_cast<double>(o.micro_batches * o.sequences * o.length) / median;
  std::printf("%.3f s a step (median of %zu; %.3f to %.3f), %.0f tokens/s\n", median,
              seconds.size(), seconds.front(), seconds.back(), tokens);
  std::printf("%.3f s of processor time a step (median; at least %.3f)\n",
              times.cpu[times.cpu.size() / 2], times.cpu.front());

  // FLOPs of a token: 6 for each parameter (the tied table is counted once, as the head), and those
  // of the attention's scores.
  const auto matrices = static_cast<double>(config.num_parameters());
  const double attention = static_cast<double>(12 * o.layers * o.heads * o.head_dim * o.length);
  std::printf(
      "MFU = tokens/s * (6 P + 12 L heads head_dim T) / peak FLOP/s = %.0f * (%.3g + %.3g) / %.3g "
      "= %.1f %%\n",
      tokens, 6 * matrices, attention, peak_rate,
      100 * tokens * (6 * matrices + attention) / peak_rate);
  std::printf("  counting causal attention, half of that term: %.1f %%\n",
              100 * tokens * (6 * matrices + attention / 2) / peak_rate);
}

int run(const Options& o) {
  // One rank, on the CPU or on a device.
  const bool cuda = o.device == "cuda";
  const std::shared_ptr<parallel::DeviceModule> module =
      cuda ? parallel::DeviceModule::load() : nullptr;
  at::set_num_threads(to_int(o.threads));
  const at::ScalarType dtype = models::parse_dtype(o.dtype);
  parallel::Layout layout;
  if (cuda) layout.device = parallel::Device::kCuda;
  parallel::World world({.role = "student", .layout = layout, .device_module = module});
  const double peak_rate = cuda ? o.peak_tflops * 1e12 : measured_rate(dtype);

  // What memory is counted for begins here.
  const models::ModelConfig config = qwen3(o);
  std::optional<test::PeakMemory> host;
  if (!cuda) host.emplace();
  models::Decoder decoder = models::Decoder::random(config, 1, dtype, {}, world.device());
  decoder.set_requires_grad(true);
  decoder.set_gradient_checkpointing(o.checkpointing_every > 0,
                                     std::max<int64_t>(1, o.checkpointing_every));
  roles::Trainer trainer(std::move(decoder), world,
                         {.schedule = {.learning_rate = 1e-4, .max_steps = 1'000'000}});
  const StepTimes seconds = timed_steps(trainer, o);

  const int64_t peak = cuda ? world.peak_device_bytes() : host->peak_bytes();
  const int64_t plan = planned_bytes(config, layout, dtype, o);

  std::printf("Qwen3, %.3f G parameters, %s on %s, %lld x %lld x %lld tokens a step\n",
              static_cast<double>(config.num_parameters()) / 1e9, o.dtype.c_str(),
              world.device().str().c_str(), static_cast<long long>(o.micro_batches),
              static_cast<long long>(o.sequences), static_cast<long long>(o.length));
  report_rate(config, o, seconds, peak_rate);
  std::printf("peak memory of tensors %.1f MiB, plan %.1f MiB (%+.1f %%)\n",
              static_cast<double>(peak) / 1048576, static_cast<double>(plan) / 1048576,
              100.0 * static_cast<double>(peak - plan) / static_cast<double>(plan));
  host.reset();  // LibTorch counts for one at a time, it or the profiler
  if (!o.profile.empty()) profile_step(trainer, o);
  return 0;
}

}  // namespace
}  // namespace retort::bench

int main(int argc, char** argv) {
  retort::bench::Options options;
  CLI::App app("Training steps of a random Qwen3: tokens/s, model FLOPs utilisation, peak memory");
  retort::bench::read(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return retort::bench::run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
