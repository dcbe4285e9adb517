#include "roles/trainer/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "models/checkpoint/adapter.h"
#include "parallel/vote.h"
#include "roles/trainer/state.h"

namespace retort::roles {
namespace {

// "model.layers.3.self_attn.q_proj.weight" -> "layers.3", "lm_head.weight" -> "lm_head".
std::string part_of(std::string name) {
  if (name.starts_with("model.")) name.erase(0, 6);
  const size_t word = name.find('.');
  const bool layer = name.substr(0, word) == "layers";
  return name.substr(0, layer ? name.find('.', word + 1) : word);
}

std::string join(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

// While it lives the decoder computes with what it was before it was trained.
class BeforeTraining {
 public:
  explicit BeforeTraining(models::Decoder& decoder) : decoder_(decoder) {
    using enum models::AdapterState;
    RETORT_CHECK(decoder.lora() != nullptr) << "a student without an adapter has nothing before it";
    decoder_.use_adapter(decoder.has_first_adapter() ? kFirst : kNone);
  }
  ~BeforeTraining() { decoder_.use_adapter(models::AdapterState::kTrained); }
  BeforeTraining(const BeforeTraining&) = delete;

 private:
  models::Decoder& decoder_;
};

}  // namespace

Trainer::Trainer(models::Decoder decoder, parallel::World& world, Options options)
    : decoder_(std::move(decoder)), world_(world), options_(std::move(options)) {
  decoder_.set_requires_grad(true);
  buckets_ = std::make_unique<parallel::GradBuckets>(
      decoder_.trained_parameters(), world_.dp(),
      parallel::GradBuckets::Options{.bucket_bytes = options_.bucket_bytes,
                                     .tp = &world_.tp(),
                                     .embedding = &world_.embedding(),
                                     .mp = &world_.mp(),
                                     .shard = world_.options().layout.distributed_optimizer});
  gather_ = std::make_unique<parallel::ParameterGather>(*buckets_);

  // Sharded parameters are gathered while the next forward pass runs, which waits for those of each
  // layer at the gate.
  if (buckets_->sharded())
    decoder_.set_parameter_gate([this](size_t begin, size_t end) { gather_->wait(begin, end); });
  optimizer_ = std::make_unique<parallel::AdamW>(*buckets_, options_.adamw);
  pipeline_ = std::make_unique<Pipeline>(decoder_, world_.pp());
  if (decoder_.lora() != nullptr)
    decoder_.set_adapter_dropout(options_.lora_dropout, options_.dropout_seed);
  if (decoder_.dtype() == at::kHalf) scaler_.emplace(options_.loss_scale);
}

void Trainer::keep_first_adapter(const std::filesystem::path& folder) {
  models::attach_first_adapter(decoder_, folder);
}

at::Tensor Trainer::hidden_before_training(const models::PackedTokens& tokens) {
  const c10::NoGradGuard no_grad;
  const BeforeTraining before(decoder_);
  return pipeline_->hidden(tokens);
}

models::Head Trainer::head_before_training() {
  const BeforeTraining before(decoder_);
  return decoder_.head();
}

void Trainer::begin_step() {
  buckets_->begin_step();
  decoder_.set_dropout_step(static_cast<uint64_t>(step()));
}

// Returns what the backward pass begins with: in fp16 the loss is multiplied by the loss scale.
at::Tensor Trainer::scaled(const at::Tensor& loss_sum) const {
  return scaler_ ? loss_sum * scaler_->scale() : loss_sum;
}

void Trainer::backward(const at::Tensor& loss_sum, bool last_micro_batch) {
  buckets_->set_last_micro_batch(last_micro_batch);
  scaled(loss_sum).backward();
  if (last_micro_batch) buckets_->end_last_backward();
}

void Trainer::run_pipeline(size_t micro_batches,
                           std::function<const models::PackedTokens&(size_t)> tokens,
                           std::function<at::Tensor(size_t, const at::Tensor& hidden)> loss_sum) {
  const auto loss = [this, loss_sum = std::move(loss_sum)](size_t i, const at::Tensor& hidden) {
    return scaled(loss_sum(i, hidden));
  };
  pipeline_->run({.micro_batches = micro_batches,
                  .tokens = std::move(tokens),
                  .loss = loss,
                  .before_backward = [this](bool last) { buckets_->set_last_micro_batch(last); }});
  buckets_->end_last_backward();
}

// The norm is that of the whole model; the parameters to blame may be another rank's. Every rank
// calls: one vote on the world.
void Trainer::refuse_gradient(double learning_rate) {
  parallel::run_on_all(world_.all(), [&] {
    // Only the ranks that hold such a parameter can name it; the vote passes one of their errors on
    // to all.
    const std::vector<std::string> names = buckets_->non_finite();
    if (names.empty()) return;
    const std::string scale = scaler_
                                  ? ", though the loss scale is at its least, " +
                                        std::to_string(scaler_->scale()) + " (train.min_loss_scale)"
                                  : "";
    throw Error(ErrorCode::kInvalidArgument,
                "the gradient is not finite in " + join(names, 8) + scale +
                    "; look at the learning rate, the data of this step and the teacher's payload")
        .with("step", step() + 1)
        .with("rank", world_.rank())
        .with("learning_rate", learning_rate);
  });
  throw Error(ErrorCode::kInvalidArgument,
              "the norm of the gradient is not finite, though each of its parts is")
      .with("step", step() + 1);
}

// Forms the mean gradient of all ranks, its norm, and the rate that its update would have.
Trainer::Update Trainer::reduce_gradient(double count) {
  buckets_->finish();
  Update update;
  update.learning_rate = options_.schedule.at(optimizer_->num_steps());
  if (count <= 0)
    throw Error(ErrorCode::kInvalidArgument, "a global batch has no target token")
        .with("step", step() + 1);
  // One factor makes the sum a mean and takes the loss scale off.
  buckets_->scale(1.0 / (scaler_ ? count * scaler_->scale() : count));
  if (scaler_) update.loss_scale = scaler_->scale();
  update.grad_norm = buckets_->norm();
  clip_factor_ = 1;
  return update;
}

Trainer::Update Trainer::skip_step(double count) {
  Update update = reduce_gradient(count);
  update.skipped = true;
  if (scaler_) scaler_->back_off();
  return update;
}

Trainer::Update Trainer::finish_step(double count, NonFinite non_finite) {
  Update update = reduce_gradient(count);
  if (!std::isfinite(update.grad_norm)) {
    // In fp16 a gradient that is not finite usually means that the loss scale is too large: the
    // step is skipped and the scale falls.
    if (scaler_ && scaler_->can_back_off()) {
      scaler_->back_off();
      update.skipped = true;
      update.overflowed = true;
      return update;
    }
    if (non_finite == NonFinite::kRefuse) refuse_gradient(update.learning_rate);
    // The norm is the same on all ranks, so none of them goes on to the update.
    const std::vector<std::string> names = buckets_->non_finite();
    if (!names.empty()) {
      RETORT_LOG(kWarning) << "the gradient is not finite in " << join(names, 8);
    }
    update.skipped = true;
    return update;
  }

  // The factor is that of torch.nn.utils.clip_grad_norm_.
  if (options_.max_grad_norm > 0) {
    const double coefficient = options_.max_grad_norm / (update.grad_norm + 1e-6);
    if (coefficient < 1.0) clip_factor_ = coefficient;
  }
  if (clip_factor_ < 1) buckets_->scale(clip_factor_);
  optimizer_->step(*buckets_, update.learning_rate);
  gather_->launch();
  if (scaler_) scaler_->grow_after_good_step();
  return update;
}

std::vector<std::pair<std::string, double>> Trainer::layer_grad_norms() const {
  // Every rank has a place for every part, whichever it holds.
  const auto layers = static_cast<size_t>(decoder_.config().num_hidden_layers);
  std::set<std::string> trained;
  for (const models::TensorInfo& info : models::trained_infos(decoder_, at::kFloat))
    trained.insert(part_of(info.name));
  std::vector<std::string> parts;
  if (trained.contains("embed_tokens")) parts.push_back("embed_tokens");
  for (size_t layer = 0; layer < layers; ++layer)
    parts.push_back("layers." + std::to_string(layer));
  for (const char* part : {"norm", "lm_head", "score"})
    if (trained.contains(part)) parts.push_back(part);

  std::vector<size_t> group_of;
  for (size_t i = 0; i < buckets_->size(); ++i) {
    const std::string part = part_of(buckets_->parameter(i).name);
    const auto found = std::find(parts.begin(), parts.end(), part);
    RETORT_CHECK(found != parts.end()) << buckets_->parameter(i).name;
    group_of.push_back(static_cast<size_t>(found - parts.begin()));
  }

  // The gradient may have been clipped in place; the norms that are reported are those before it.
  const std::vector<double> norms = buckets_->norms(group_of, parts.size());
  std::vector<std::pair<std::string, double>> named;
  for (size_t i = 0; i < parts.size(); ++i)
    named.emplace_back(parts[i], norms[i] / clip_factor_);
  return named;
}

models::CheckpointPart Trainer::state_part() const {
  return optimizer_part(*optimizer_, scaler_, decoder_, world_);
}

void Trainer::load_state(const std::filesystem::path& folder) {
  load_optimizer(*optimizer_, scaler_, decoder_, folder);
}

}  // namespace retort::roles
