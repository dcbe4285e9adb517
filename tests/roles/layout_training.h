// A small trainer in any layout, on the CPU or a device, beside one in a single process: what the
// tests of layouts share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "models/decoder/decoder.h"
#include "parallel/world.h"
#include "roles/trainer/trainer.h"

namespace retort::roles::testing {

struct LayoutCase {
  parallel::Layout layout;
  bool tied = false, checkpointing = false;
  models::Family family = models::Family::kQwen3;
  bool lora = false;  // an adapter is trained beside a model that stays as it is
};
std::string name_of(const LayoutCase& c);
// Those that are run on devices: of two and four ranks, of each kind.
const std::vector<LayoutCase>& device_layouts();

// With windows on some layers.
models::ModelConfig windowed_nano(bool tied, models::Family family);
// The tokens of micro-batch `index` of a step on one dp rank, of sizes that differ; some are short,
// one is empty.
models::PackedTokens tokens_of(int step, int64_t index);
at::Tensor loss_of(const models::Head& head, const at::Tensor& hidden,
                   const models::PackedTokens& tokens);
Trainer::Options layout_trainer_options(const parallel::Layout& layout);

// What one process computes: the loss and the norms of each step, its gradients as they are after
// clipping, by name, and the parameters at the end; all in host memory.
struct SingleStep {
  double loss = 0, grad_norm = 0;
  std::map<std::string, double> part_norms;
  std::map<std::string, at::Tensor> gradients;
};
struct SingleRun {
  std::vector<SingleStep> steps;
  std::map<std::string, at::Tensor> parameters;
};
// By what a case says of its model: tied, family, lora. Neither its layout nor what is recomputed
// concerns one process, so that many cases have one run.
using SingleRuns = std::map<std::tuple<bool, models::Family, bool>, SingleRun>;

// Trains the case in this rank's world, and as one process where `singles` has no such run yet;
// throws, naming the case and the rank, where a loss, a norm, a gradient or a parameter at the end
// differs by more than 1e-5. `options` are the world's but for its layout, whose device they name;
// `single_device` is that of all `singles`.
void compare_with_one_process(const LayoutCase& c, parallel::World::Options options,
                              SingleRuns& singles, parallel::Device single_device);

}  // namespace retort::roles::testing
