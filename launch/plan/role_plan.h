// What a role of a recipe needs, from sizes alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/plan/device_plan.h"
#include "models/memory/memory_estimate.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

struct RolePlan {
  std::string name;
  std::string model;
  int64_t ranks = 1, parameters = 0;
  // of the rank that needs most; of a serving role its parameters, of a frozen one also what it
  // holds while it answers for one micro-batch, and as answers the hidden states that it keeps
  // until the student has named ids
  models::TrainingMemory memory;
  // of the student the copy of what it pushed last, for a generator that is started again without
  // it; of a generator what is pushed, beside the weights in use, and where that is an adapter
  // what the weights become with it
  int64_t pushed_weights = 0;
  bool pushed_on_host = false;  // and not where it computes
  int64_t kv_cache = 0;         // of a generator
  // What a process takes of its device beside tensors: the driver's context, cuBLAS's workspaces,
  // NCCL's buffers. 0 on the CPU.
  int64_t beside_tensors = 0;
  bool trains = false;
  // Whether the formulas were held against runs: on the CPU (models/memory/memory_estimate.h)
  bool measured = true;
  double flops_per_token = 0;
  std::vector<DevicePlan> devices = {};  // on each host that has ranks of it
  // Of tensors alone, as LibTorch's allocator counts them.
  int64_t peak() const { return memory.peak() + kv_cache + (pushed_on_host ? 0 : pushed_weights); }
  // What a rank takes of its device.
  int64_t device_bytes() const { return peak() + beside_tensors; }
  double flops_per_rank() const { return flops_per_token / static_cast<double>(ranks); }
};

// Plans in the recipe's order of roles. Reads the models' configs, no weights.
std::vector<RolePlan> plan_roles(const recipes::Recipe& recipe);

}  // namespace retort::launch
