// The trainer role: a decoder being trained, its gradients, optimizer and state on disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "models/decoder.h"
#include "parallel/adamw.h"
#include "parallel/grad_buckets.h"
#include "parallel/lr_schedule.h"
#include "parallel/world.h"

namespace retort::roles {

// One optimizer step:
//   trainer.begin_step();
//   for each micro-batch i: trainer.backward(loss_sum, i == n - 1);      // sums, not means
//   auto update = trainer.finish_step(global_count);                     // reduce, 1/count, check, clip, AdamW
// Gradients accumulate as unnormalised fp32 sums and are scaled once by 1/count after the reduction and before clipping.
// Threads: compute. Collectives: all-reduces on the world's dp group in backward/finish_step; every rank must call.
class Trainer {
 public:
  struct Options {
    parallel::AdamW::Options adamw;
    parallel::LrSchedule schedule;
    double max_grad_norm = 1.0;  // 0: no clipping
    int64_t bucket_bytes = 40 << 20;
  };
  Trainer(models::Decoder decoder, parallel::World& world, Options options);

  const models::Decoder& decoder() const { return decoder_; }
  const Options& options() const { return options_; }
  parallel::GradBuckets& buckets() { return *buckets_; }

  void begin_step();
  // `loss_sum`: scalar; kInvalidArgument with a report when it is not finite.
  void backward(const at::Tensor& loss_sum, bool last_micro_batch);
  struct Update {
    double grad_norm = 0;  // before clipping, of the mean gradient
    double learning_rate = 0;
  };
  // `count`: target tokens of the global batch. kInvalidArgument naming the parameters when a gradient is not finite.
  Update finish_step(double count);
  int64_t step() const { return optimizer_->num_steps(); }

  // state/optimizer.safetensors: "<parameter>.exp_avg|exp_avg_sq|master" and the step. Written by one rank; all ranks load.
  void save_state(const std::filesystem::path& folder) const;
  void load_state(const std::filesystem::path& folder);

 private:
  models::Decoder decoder_;
  parallel::World& world_;
  Options options_;
  std::unique_ptr<parallel::GradBuckets> buckets_;
  std::unique_ptr<parallel::AdamW> optimizer_;
};

}  // namespace retort::roles
