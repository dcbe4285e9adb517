// What training in a layout costs: child processes of one thread each, over Gloo.
//   parallel_bench bytes            bytes that the kernel has sent for each step and rank, against
//       the count by formula (within 1 %)
//   parallel_bench reduce_scatter   our reduce-scatter beside c10d's all-reduce of the same bytes
//   parallel_bench memory           peak bytes of LibTorch's allocator against
//       models::estimate_training_memory (within 10 %), and RSS
//   parallel_bench overlap          what reducing gradients adds to the backward pass, by bucket
//       size
// Without an argument all of them. Exits with 1 when a measurement is not what was predicted.
#include "bench/parallel_bench.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/sizes.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "tests/support/process.h"

namespace retort::bench {

using test::ChildProcess;

models::ModelConfig llama(const Sizes& sizes) {
  models::ModelConfig config;
  config.vocab_size = sizes.vocab;
  config.hidden_size = sizes.hidden;
  config.intermediate_size = sizes.inner;
  config.num_hidden_layers = sizes.layers;
  config.num_attention_heads = sizes.heads;
  config.num_key_value_heads = sizes.kv_heads;
  config.head_dim = sizes.hidden / sizes.heads;
  config.max_position_embeddings = 4096;
  config.sliding_window.assign(to_size(sizes.layers), 0);
  return config;
}

models::PackedTokens batch_of(uint64_t seed, int64_t sequences, int64_t length, int64_t vocab) {
  std::vector<std::vector<int32_t>> rows(to_size(sequences));
  uint64_t state = seed * 7919 + 1;
  for (std::vector<int32_t>& row : rows)
    for (int64_t i = 0; i < length; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      row.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
    }
  return models::pack_rows(rows);
}

std::string name_of(const parallel::Layout& layout) {
  std::string name;
  const auto add = [&](const std::string& text) { name += (name.empty() ? "" : " ") + text; };
  if (layout.tp > 1) add("tp" + std::to_string(layout.tp));
  if (layout.sequence_parallel) add("sp");
  if (layout.pp > 1) add("pp" + std::to_string(layout.pp));
  if (layout.virtual_pp > 1) add("vpp" + std::to_string(layout.virtual_pp));
  if (layout.dp > 1) add("dp" + std::to_string(layout.dp));
  if (layout.distributed_optimizer) add("zero1");
  return name.empty() ? "one process" : name;
}

std::vector<std::string> run_ranks(const std::string& role, const parallel::Layout& layout,
                                   const std::string& argument) {
  const parallel::StoreServer store("127.0.0.1");
  std::vector<ChildProcess> ranks;
  for (int64_t rank = 0; rank < layout.world_size(); ++rank)
    ranks.push_back(
        ChildProcess::spawn({.role = role,
                             .args = {std::to_string(rank), std::to_string(store.port()), argument},
                             .env = {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}},
                             .program = {}}));

  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  std::vector<std::string> last;
  for (ChildProcess& rank : ranks) {
    // Every line but the last is printed; "end" follows the last.
    std::string line;
    for (std::string next = rank.read_line(deadline); next != "end";
         next = rank.read_line(deadline)) {
      if (!line.empty()) std::printf("%s\n", line.c_str());
      line = next;
    }
    last.push_back(line);
    if (const int code = rank.wait(deadline); code != 0)
      throw Error(ErrorCode::kUnavailable, "a rank failed").with("exit_code", code);
  }
  return last;
}

std::string child_argument() { return test::spawned_args().at(2); }

parallel::World::Options child_world(const parallel::Layout& layout) {
  const std::vector<std::string> args = test::spawned_args();
  parallel::World::Options options;
  options.role = "student";
  options.layout = layout;
  options.rank = std::stoll(args.at(0));
  options.store_port = static_cast<uint16_t>(std::stoi(args.at(1)));
  options.store_prefix = "bench/student/0/";
  return options;
}

roles::Trainer::Options trainer_options(int64_t bucket_bytes) {
  return {.adamw = {},
          .schedule = {.learning_rate = 1e-4, .max_steps = 1'000'000},
          .bucket_bytes = bucket_bytes};
}

void train_step(roles::Trainer& trainer, parallel::World& world,
                const std::vector<models::PackedTokens>& batches) {
  double sum = 0;
  double count = 0;
  for (const models::PackedTokens& tokens : batches)
    count += static_cast<double>(tokens.num_tokens());

  const auto loss = [&](size_t i, const at::Tensor& hidden) {
    const models::Head head = trainer.decoder().head();
    const at::Tensor targets = batches[i].input_ids.roll({-1});
    // Every token is a target; its row is taken as the recipes do.
    const at::Tensor rows = models::rows_at(hidden, at::arange(hidden.size(0)));
    at::Tensor value =
        losses::linear_cross_entropy(rows, head.weight, {}, targets, 0, head.vocab).loss_sum;
    sum += value.item<double>();
    return value;
  };

  // With a pipeline the schedule orders the micro-batches.
  trainer.begin_step();
  if (world.pp().size() > 1) {
    trainer.run_pipeline(
        batches.size(), [&](size_t i) -> const models::PackedTokens& { return batches[i]; }, loss);
  } else {
    for (size_t i = 0; i < batches.size(); ++i) {
      // The hidden states are a temporary, so that the backward pass can free them.
      const at::Tensor value = loss(i, trainer.hidden(batches[i]));
      trainer.backward(value, i + 1 == batches.size());
    }
  }

  // All that a recipe's step sends belongs to it: the loss, and the parameters of a sharded
  // optimizer, for which decoder() waits.
  world.dp_pp().all_reduce(sum);
  trainer.finish_step(count * static_cast<double>(world.dp().size()));
  trainer.decoder();
}

}  // namespace retort::bench

int main(int argc, char** argv) {
  using namespace retort;
  using namespace retort::bench;
  struct Part {
    int (*parent)();
    void (*child)();
  };
  const std::map<std::string, Part> parts{
      {"bytes", {measure_bytes, bytes_rank}},
      {"reduce_scatter", {measure_reduce_scatter, reduce_scatter_rank}},
      {"memory", {measure_memory, memory_rank}},
      {"overlap", {measure_overlap, overlap_rank}}};

  try {
    // This process is a rank of a part: its parent reads what it says.
    if (const auto role = test::spawned_role()) {
      at::set_num_threads(1);
      parts.at(*role).child();
      test::say("end");
      return 0;
    }

    if (argc > 2 || (argc == 2 && parts.count(argv[1]) == 0)) {
      std::fprintf(stderr, "usage: parallel_bench [bytes | reduce_scatter | memory | overlap]\n");
      return 2;
    }

    int code = 0;
    for (const auto& [name, part] : parts)
      if (argc == 1 || name == argv[1]) code |= part.parent();
    return code;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "parallel_bench: %s\n", e.what());
    return 1;
  }
}
