#include "roles/trainer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "models/safetensors.h"

namespace retort::roles {
namespace {

constexpr const char* kStateFile = "optimizer.safetensors";

std::string join(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace

Trainer::Trainer(models::Decoder decoder, parallel::World& world, Options options)
    : decoder_(std::move(decoder)), world_(world), options_(std::move(options)) {
  decoder_.set_requires_grad(true);
  buckets_ = std::make_unique<parallel::GradBuckets>(decoder_.parameters(), world_.dp(),
                                                     parallel::GradBuckets::Options{.bucket_bytes = options_.bucket_bytes});
  optimizer_ = std::make_unique<parallel::AdamW>(decoder_.parameters(), options_.adamw);
}

void Trainer::begin_step() { buckets_->begin_step(); }

void Trainer::backward(const at::Tensor& loss_sum, bool last_micro_batch) {
  buckets_->set_last_micro_batch(last_micro_batch);
  loss_sum.backward();
}

Trainer::Update Trainer::finish_step(double count) {
  buckets_->finish();
  Update update;
  update.learning_rate = options_.schedule.at(optimizer_->num_steps());
  if (count <= 0) throw Error(ErrorCode::kInvalidArgument, "a global batch has no target token").with("step", step() + 1);
  buckets_->scale(1.0 / count);
  update.grad_norm = buckets_->norm();
  if (!std::isfinite(update.grad_norm))
    throw Error(ErrorCode::kInvalidArgument, "the gradient is not finite in " + join(buckets_->non_finite(), 8) +
                                                 "; look at the learning rate, the data of this step and the teacher's payload")
        .with("step", step() + 1)
        .with("rank", world_.rank())
        .with("learning_rate", update.learning_rate);
  // The coefficient of torch.nn.utils.clip_grad_norm_.
  if (options_.max_grad_norm > 0) {
    const double coefficient = options_.max_grad_norm / (update.grad_norm + 1e-6);
    if (coefficient < 1.0) buckets_->scale(coefficient);
  }
  optimizer_->step(*buckets_, update.learning_rate);
  return update;
}

void Trainer::save_state(const std::filesystem::path& folder) const {
  const parallel::AdamW::State state = optimizer_->state();
  models::write_safetensors(folder / kStateFile, state.tensors, {{"step", std::to_string(state.step)}});
}

void Trainer::load_state(const std::filesystem::path& folder) {
  const models::SafetensorsReader reader(folder / kStateFile);
  parallel::AdamW::State state;
  const auto& metadata = reader.metadata();
  const auto step = metadata.find("step");
  if (step == metadata.end()) throw Error(ErrorCode::kCorrupt, "no step in the metadata of " + (folder / kStateFile).string());
  state.step = std::stoll(step->second);
  for (const std::string& name : reader.names()) state.tensors.emplace_back(name, reader.get(name));
  optimizer_->load_state(state);
}

}  // namespace retort::roles
