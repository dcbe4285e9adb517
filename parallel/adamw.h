// AdamW (Loshchilov & Hutter 2019, decoupled weight decay; the arithmetic of torch.optim.AdamW) on fp32 main_grads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parallel/grad_buckets.h"

namespace retort::parallel {

// State per parameter element: m and v fp32 (8 bytes), and an fp32 master copy (4 bytes) when the parameter is not fp32.
// Everything is allocated in the constructor, not lazily.
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
    // Names that end in one of these get no weight decay (empty: all decay, as torch.optim.AdamW on model.parameters()).
    std::vector<std::string> no_decay_suffixes;
  };
  AdamW(std::vector<NamedParameter> parameters, Options options);

  // One update with main_grads of `grads` (same order of parameters). No collectives.
  void step(const GradBuckets& grads, double learning_rate);
  int64_t num_steps() const { return step_; }
  int64_t state_bytes() const;

  // Layout-independent state: one tensor per (parameter, "exp_avg" | "exp_avg_sq" | "master"), keyed "<name>.<what>".
  struct State {
    int64_t step = 0;
    std::vector<std::pair<std::string, at::Tensor>> tensors;
  };
  State state() const;  // the live tensors, not copies
  // Copies; exactly the tensors that state() has. kMismatch naming the first missing, misshaped or unknown tensor, before
  // anything is written. A loaded master also sets its parameter.
  void load_state(const State& state);

 private:
  bool decays(const std::string& name) const;

  std::vector<NamedParameter> parameters_;
  Options options_;
  int64_t step_ = 0;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_, master_;
};

}  // namespace retort::parallel
