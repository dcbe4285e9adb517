// The dynamic loss scale of training in float16: Megatron-LM's DynamicGradScaler without
// hysteresis, which is torch.amp.GradScaler with a lower bound.
#pragma once

#include <cstdint>

namespace retort::parallel {

// A float16 gradient below 6e-8 is 0, one above 65504 is infinite. The loss is multiplied by the
// scale before its backward pass, and the fp32 sums of the gradients are divided by it. A gradient
// that is not finite halves the scale, and its step is skipped; so many good steps in a row double
// it.
//
// Use:
//   (loss * scaler.scale()).backward();
//   buckets.finish();
//   buckets.scale(1 / (count * scaler.scale()));
//   if (std::isfinite(buckets.norm()))
//     optimizer.step(buckets, rate), scaler.grow_after_good_step();
//   else if (scaler.can_back_off())
//     scaler.back_off();  // and no update
//
// Collectives: none. Ranks that see the same steps have the same scale: GradBuckets::norm() is the
//   same on all of them.
// Threads: compute.
class LossScaler {
 public:
  struct Options {
    double initial_scale = 65536;  // that of torch.amp.GradScaler
    double min_scale = 1;          // Megatron-LM's
    int64_t window = 1000;         // good steps in a row before the scale is doubled; Megatron-LM's

    // kInvalidArgument naming the field.
    void validate() const;
  };
  struct State {
    double scale = 0;
    int64_t good_steps = 0;  // since the scale has changed, or a step was skipped
    bool operator==(const State&) const = default;
  };
  explicit LossScaler(Options options);

  double scale() const { return state_.scale; }
  // True if a smaller scale may help: not at min_scale.
  bool can_back_off() const { return state_.scale > options_.min_scale; }
  // Halves the scale, at most to min_scale.
  void back_off();
  // Doubles the scale after `window` of them, unless float32 does not hold that.
  void grow_after_good_step();

  const State& state() const { return state_; }
  // kCorrupt unless scale is positive and finite and good_steps is 0 or more.
  void load_state(const State& state);

 private:
  Options options_;
  State state_;
};

}  // namespace retort::parallel
