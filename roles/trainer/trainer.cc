#include "roles/trainer/trainer.h"

#include <ATen/core/Tensor.h>

#include <cmath>

#include "base/error.h"
#include "parallel/vote.h"
#include "roles/trainer/state.h"

namespace retort::roles {
namespace {

std::string join(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace

Trainer::Trainer(models::Decoder decoder, parallel::World& world, Options options)
    : decoder_(std::move(decoder)), world_(world), options_(std::move(options)) {
  decoder_.set_requires_grad(true);
  buckets_ = std::make_unique<parallel::GradBuckets>(
      decoder_.parameters(), world_.dp(),
      parallel::GradBuckets::Options{.bucket_bytes = options_.bucket_bytes,
                                     .tp = &world_.tp(),
                                     .embedding = &world_.embedding(),
                                     .mp = &world_.mp(),
                                     .shard = world_.options().layout.distributed_optimizer});
  gather_ = std::make_unique<parallel::ParameterGather>(*buckets_);
  if (buckets_->sharded())
    decoder_.set_parameter_gate([this](size_t begin, size_t end) { gather_->wait(begin, end); });
  optimizer_ = std::make_unique<parallel::AdamW>(*buckets_, options_.adamw);
  pipeline_ = std::make_unique<Pipeline>(decoder_, world_.pp());
}

void Trainer::begin_step() { buckets_->begin_step(); }

void Trainer::backward(const at::Tensor& loss_sum, bool last_micro_batch) {
  buckets_->set_last_micro_batch(last_micro_batch);
  loss_sum.backward();
}

void Trainer::run_pipeline(size_t micro_batches,
                           std::function<const models::PackedTokens&(size_t)> tokens,
                           std::function<at::Tensor(size_t, const at::Tensor& hidden)> loss_sum) {
  pipeline_->run({.micro_batches = micro_batches,
                  .tokens = std::move(tokens),
                  .loss = std::move(loss_sum),
                  .before_backward = [this](bool last) { buckets_->set_last_micro_batch(last); }});
}

// The norm is that of the whole model; the parameters to blame may be another rank's. Every rank
// calls: one vote on the world.
void Trainer::refuse_gradient(double learning_rate) {
  parallel::run_on_all(world_.all(), [&] {
    const std::vector<std::string> names = buckets_->non_finite();
    if (names.empty()) return;
    throw Error(ErrorCode::kInvalidArgument,
                "the gradient is not finite in " + join(names, 8) +
                    "; look at the learning rate, the data of this step and the teacher's payload")
        .with("step", step() + 1)
        .with("rank", world_.rank())
        .with("learning_rate", learning_rate);
  });
  throw Error(ErrorCode::kInvalidArgument,
              "the norm of the gradient is not finite, though each of its parts is")
      .with("step", step() + 1);
}

Trainer::Update Trainer::finish_step(double count) {
  buckets_->finish();
  Update update;
  update.learning_rate = options_.schedule.at(optimizer_->num_steps());
  if (count <= 0)
    throw Error(ErrorCode::kInvalidArgument, "a global batch has no target token")
        .with("step", step() + 1);
  buckets_->scale(1.0 / count);
  update.grad_norm = buckets_->norm();
  if (!std::isfinite(update.grad_norm)) refuse_gradient(update.learning_rate);
  // The coefficient of torch.nn.utils.clip_grad_norm_.
  if (options_.max_grad_norm > 0) {
    const double coefficient = options_.max_grad_norm / (update.grad_norm + 1e-6);
    if (coefficient < 1.0) buckets_->scale(coefficient);
  }
  optimizer_->step(*buckets_, update.learning_rate);
  gather_->launch();
  return update;
}

models::CheckpointPart Trainer::state_part() const {
  return optimizer_part(*optimizer_, decoder_, world_);
}

void Trainer::load_state(const std::filesystem::path& folder) {
  load_optimizer(*optimizer_, decoder_, folder);
}

}  // namespace retort::roles
