// What the parts of parallel_bench share: models, batches, child processes that are the ranks of a
// world, and one training step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/ops/packed.h"
#include "parallel/world.h"
#include "roles/trainer/trainer.h"

namespace retort::bench {

struct Sizes {
  int64_t hidden = 0;
  int64_t inner = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t vocab = 0;
};
models::ModelConfig llama(const Sizes& sizes);
// `sequences` of `length` random tokens each, which depend on the seed.
models::PackedTokens batch_of(uint64_t seed, int64_t sequences, int64_t length, int64_t vocab);

// "tp2 sp dp2 zero1"
std::string name_of(const parallel::Layout& layout);

// In the parent: starts every rank of the layout as a child in `role` with `argument`, and returns
// the last line that each printed; the other lines are printed here. Throws when one fails or takes
// more than ten minutes.
std::vector<std::string> run_ranks(const std::string& role, const parallel::Layout& layout,
                                   const std::string& argument);

// In a child: the argument that its parent gave it, and the options of its world.
std::string child_argument();
parallel::World::Options child_world(const parallel::Layout& layout);

// One optimizer step of cross-entropy over these micro-batches, and all that it sends.
void train_step(roles::Trainer& trainer, parallel::World& world,
                const std::vector<models::PackedTokens>& batches);
roles::Trainer::Options trainer_options(int64_t bucket_bytes);

// The measurements. measure_...() runs in the parent and returns the exit code, ..._rank() in each
// child.
int measure_bytes();
void bytes_rank();
int measure_reduce_scatter();
void reduce_scatter_rank();
int measure_memory();
void memory_rank();
int measure_overlap();
void overlap_rank();

}  // namespace retort::bench
