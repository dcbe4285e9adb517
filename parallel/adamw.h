// AdamW (Loshchilov & Hutter 2019, decoupled weight decay; the arithmetic of torch.optim.AdamW) on
// fp32 main_grads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_checker.h"
#include "parallel/grad_buckets.h"

namespace retort::parallel {
namespace detail {
class AdamwKernel;
}

// Updates parameters from the sums of their gradients. With sharded gradients (ZeRO-1) it has the
// state of GradBuckets::part() only and updates that part of each parameter; ParameterGather makes
// them whole again.
//
// Collectives: none.
// Memory: for each element m and v in fp32 (8 bytes), and an fp32 master copy (4 bytes) when the
//   parameter is not fp32; all of it is allocated in the constructor. With our own kernel a table
//   besides (detail/adamw_kernel.h).
// Errors: kInvalidArgument naming the parameter that is on another device than the first, not
//   contiguous or of another dtype than fp32, bf16, fp16.
// Devices: the CPU or one CUDA device, the same for all parameters; the state lies there too. On a
//   device step() only queues work: where the device has our kernels, and no parameter is fp16
//   (which the kernel lacks), one launch that reads the gradients and writes the weights too; else
//   torch's fused kernel, and a copy of each master.
// Threads: compute.
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.0;
    // Names that end in one of these get no weight decay (empty: all decay, as torch.optim.AdamW on
    // model.parameters()).
    std::vector<std::string> no_decay_suffixes;
  };
  // Updates all elements of the parameters.
  AdamW(std::vector<NamedParameter> parameters, Options options);
  // Updates the parts that `grads` has the sums of.
  AdamW(const GradBuckets& grads, Options options);
  ~AdamW();

  // One update with main_grads of `grads` (same order of parameters, same parts) times their
  // pending scale, which is applied in the same pass. Torch's kernel leaves it in main_grads, where
  // it is pending no more; ours writes no gradient, and the scale stays pending.
  void step(GradBuckets& grads, double learning_rate);
  int64_t num_steps() const { return step_; }
  int64_t state_bytes() const;  // what the state has allocated

  // The state as every layout understands it: pieces of tensors "<name>.exp_avg",
  // "<name>.exp_avg_sq" and "<name>.master" that have the whole parameter's shape, in the order of
  // the parameters. `values` are the live tensors (fp32, one dimension, on the parameters' device),
  // not copies.
  //
  // counted_only: the pieces that this rank writes to a checkpoint. Over tp, pp and sharded dp
  // these cover every element exactly once; without sharding every dp rank has the same ones, and
  // one of them writes.
  std::vector<TensorPiece> state(bool counted_only = false) const;
  // Fills the values of a piece, which it does not replace. It throws for what it does not have.
  using ReadPiece = std::function<void(TensorPiece& piece)>;
  // Sets the step and has every piece of state() filled, where it lies. A loaded master also sets
  // its part of the parameter. After an error the state is half of one and half of another:
  // step() and state() abort until a load_state() has come to its end.
  void load_state(int64_t step, const ReadPiece& read);

 private:
  void allocate();
  void check_same_parameters(const GradBuckets& grads) const;
  bool decays(const std::string& name) const;
  std::vector<TensorPiece> pieces(bool counted_only) const;
  void check_not_half_loaded() const;
  at::Tensor value_part(size_t i) const;  // of the parameter, one dimension
  void step_by_kernel(const GradBuckets& grads, double learning_rate);
  void step_by_torch(GradBuckets& grads, double learning_rate);
  void set_parameters_from_masters();

  std::vector<NamedParameter> parameters_;
  std::vector<GradBuckets::Part> parts_;  // per parameter
  Options options_;
  int64_t step_ = 0;
  bool half_loaded_ = false;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_, master_;  // of the parts, one dimension
  std::unique_ptr<detail::AdamwKernel> kernel_;  // null: torch's takes the steps
  ThreadChecker compute_thread_;
};

}  // namespace retort::parallel
