// The trainer role: a decoder being trained, its gradients, optimizer and state on disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/decoder/decoder.h"
#include "parallel/adamw.h"
#include "parallel/grad_buckets.h"
#include "parallel/loss_scaler.h"
#include "parallel/lr_schedule.h"
#include "parallel/parameter_gather.h"
#include "parallel/world.h"
#include "roles/trainer/pipeline.h"

namespace retort::roles {

// A decoder with an adapter (Decoder::attach_adapter) has its adapter trained, nothing else.
// One optimizer step:
//   trainer.begin_step();
//   // sums, not means
//   for each micro-batch i: trainer.backward(loss_sum of trainer.hidden(tokens), i == n - 1);
//   or, with several stages: trainer.run_pipeline(n, tokens, loss_sum);
//   // reduce, 1/count, check, clip, AdamW
//   auto update = trainer.finish_step(global_count);
// Gradients accumulate as unnormalised fp32 sums and are scaled once by 1/count after the reduction
// and before clipping. A float16 decoder's loss is multiplied by a dynamic scale before its
// backward pass, which is divided out with the count: parallel::LossScaler. Threads: compute.
// Collectives: the decoder's on tp, the pipeline's on pp, and in backward/finish_step those of
// parallel::GradBuckets and ParameterGather on dp, tp, mp and the embedding group; every rank must
// call.
class Trainer {
 public:
  struct Options {
    parallel::AdamW::Options adamw;
    parallel::LrSchedule schedule;
    double max_grad_norm = 1.0;  // 0: no clipping
    int64_t bucket_bytes = 40 << 20;
    parallel::LossScaler::Options loss_scale;  // of float16 parameters; others have none
    double lora_dropout = 0;                   // of an adapter: Decoder::set_adapter_dropout
    uint64_t dropout_seed = 0;                 // the run's
  };
  Trainer(models::Decoder decoder, parallel::World& world, Options options);

  Trainer(const Trainer&) = delete;

  // With all its parameters there (a sharded optimizer sends them while the next forward pass
  // runs).
  const models::Decoder& decoder() const {
    gather_->wait();
    return decoder_;
  }
  // Final hidden states where the pipeline ends, undefined elsewhere: Pipeline::hidden.
  at::Tensor hidden(const models::PackedTokens& tokens) const { return pipeline_->hidden(tokens); }
  // From now on hidden_before_training is that of the adapter in this folder
  // (models::attach_first_adapter); before, that of the model without an adapter, which a new
  // adapter leaves as it is. Of a decoder with an adapter only.
  void keep_first_adapter(const std::filesystem::path& folder);
  // hidden() of what the student was before it was trained, outside autograd. Of a decoder with an
  // adapter only, whose trained state stays as it is.
  at::Tensor hidden_before_training(const models::PackedTokens& tokens);
  // The head that those states belong to, which may be trained beside an adapter.
  models::Head head_before_training();
  const Options& options() const { return options_; }
  parallel::GradBuckets& buckets() { return *buckets_; }

  // What an adapter drops follows from the number of updates so far.
  void begin_step();
  // `loss_sum`: scalar; kInvalidArgument with a report when it is not finite.
  void backward(const at::Tensor& loss_sum, bool last_micro_batch);
  // All forward and backward passes of a step in a pipeline of several stages: Pipeline::Step.
  // kInvalidArgument as backward().
  void run_pipeline(size_t micro_batches, std::function<const models::PackedTokens&(size_t)> tokens,
                    std::function<at::Tensor(size_t, const at::Tensor& hidden)> loss_sum);
  struct Update {
    double grad_norm = 0;  // before clipping, of the mean gradient
    double learning_rate = 0;
    bool skipped = false;  // nothing has changed, neither parameters nor the optimizer's state
    // It was skipped because a gradient in float16 was not finite, and the next step has a smaller
    // scale.
    bool overflowed = false;
    std::optional<double> loss_scale;  // that the gradient was formed with, in float16
  };
  // What becomes of a step that is not finite.
  enum class NonFinite { kRefuse, kSkip };
  // `count`: target tokens of the global batch. When a gradient is not finite: kInvalidArgument
  // naming the parameters, or the update is skipped, on all ranks alike. In float16 it is skipped
  // whatever `non_finite` says as long as the loss scale can be lowered.
  Update finish_step(double count, NonFinite non_finite = NonFinite::kRefuse);
  // Ends a step whose loss is not finite: as finish_step, but nothing changes, whatever the
  // gradient is.
  Update skip_step(double count);
  // Of the gradient of the last finish_step, before clipping, by the parts of the model:
  // "embed_tokens", "layers.0", ..., "norm", "lm_head" (without one where the head is tied; of a
  // sequence classifier "score"); of an adapter the layers and what is trained whole. Their squares
  // sum to grad_norm's square. Collectives: those of GradBuckets::norms; every rank must call.
  std::vector<std::pair<std::string, double>> layer_grad_norms() const;
  // Updates so far: the steps that were not skipped, which the learning rate follows.
  int64_t step() const { return optimizer_->num_steps(); }

  // The state of the optimizer and the loss scale on disk: roles/trainer/state.h.
  models::CheckpointPart state_part() const;
  void load_state(const std::filesystem::path& folder);

 private:
  at::Tensor scaled(const at::Tensor& loss_sum) const;
  Update reduce_gradient(double count);
  [[noreturn]] void refuse_gradient(double learning_rate);
  models::Decoder decoder_;
  parallel::World& world_;
  Options options_;
  std::unique_ptr<parallel::GradBuckets> buckets_;
  std::unique_ptr<parallel::ParameterGather> gather_;
  std::unique_ptr<parallel::AdamW> optimizer_;
  std::unique_ptr<Pipeline> pipeline_;
  std::optional<parallel::LossScaler> scaler_;  // of a float16 decoder
  double clip_factor_ = 1;                      // what the last gradient was multiplied with
};

}  // namespace retort::roles
