#include "recipes/distill/on_policy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <span>

#include "base/error.h"
#include "base/random.h"
#include "recipes/data/completion_sample.h"
#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/policy.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/rank/request_id.h"

namespace retort::recipes {
namespace {

constexpr uint64_t kOnPolicyDraw = 0x6f6e706f;

data::PromptSample prompt_of(const data::Sample& sample, int64_t max_prompt) {
  const int64_t first = data::last_turn_begin(sample.is_target);
  data::PromptSample prompt;
  prompt.prompt_ids.assign(sample.input_ids.begin(), sample.input_ids.begin() + first);
  prompt.origin = sample.origin;
  prompt.fields = sample.fields;
  if (prompt.prompt_ids.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "sample " + sample.origin +
                    " has no tokens before its last targets, so there is no prompt to continue");
  if (first > max_prompt)
    throw Error(
        ErrorCode::kInvalidArgument,
        "sample " + sample.origin + ": a prompt of " + std::to_string(first) +
            " tokens leaves no room for generation.max_new_tokens within data.max_length; raise "
            "the one or lower the other");
  return prompt;
}

// Adds what people read of a sample that is saved. The row's own answer is its last run of targets.
void add_texts(data::PromptSample& prompt, const data::Sample& sample,
               const models::Tokenizer& tokenizer) {
  const size_t first = prompt.prompt_ids.size();
  size_t end = first;
  while (end < sample.is_target.size() && sample.is_target[end])
    ++end;
  prompt.prompt_text = tokenizer.decode(prompt.prompt_ids, /*skip_special_tokens=*/false);
  prompt.reference = tokenizer.decode(std::span(sample.input_ids).subspan(first, end - first),
                                      /*skip_special_tokens=*/true);
}

}  // namespace

bool is_on_policy(uint64_t seed, int64_t step, double lmbda) {
  return random_uniform(seed, kOnPolicyDraw, static_cast<uint64_t>(step)) < lmbda;
}

std::function<bool(int64_t step)> on_policy_steps(const Recipe& recipe) {
  return [seed = static_cast<uint64_t>(recipe.seed), lmbda = recipe.distill->lmbda](int64_t step) {
    return is_on_policy(seed, step, lmbda);
  };
}

OnPolicySource::OnPolicySource(parallel::World& world, const roles::Trainer& trainer,
                               StepSource data, std::shared_ptr<SampleSource> samples,
                               Options options)
    : world_(world),
      trainer_(trainer),
      data_(std::move(data)),
      samples_(std::move(samples)),
      options_(std::move(options)) {}

data::BatchStream::Step OnPolicySource::operator()(int64_t step) {
  data::BatchStream::Step batches = data_(step);
  if (!is_on_policy(options_.seed, step, options_.lmbda)) return batches;

  // What stands before the last turn of each sample is its prompt.
  RolloutRequest request{.step = step, .number = static_cast<uint64_t>(step)};
  for (const data::MicroBatch& batch : batches.micro_batches)
    for (const data::Sample& sample : batch.samples) {
      request.prompts.push_back(prompt_of(sample, options_.max_length - options_.max_new_tokens));
      if (!options_.samples_folder.empty() && options_.tokenizer)
        add_texts(request.prompts.back(), sample, *options_.tokenizer);
      // The id is unique over steps and ranks, and the same in a resumed run.
      const auto place = static_cast<uint64_t>(request.sample_ids.size()) *
                         static_cast<uint64_t>(world_.dp().size());
      request.sample_ids.push_back((static_cast<uint64_t>(step) << 24) + place +
                                   static_cast<uint64_t>(world_.dp().rank()));
    }

  // The student of now draws one completion for each prompt, so its weights are pushed before.
  samples_->sync(trainer_.decoder(), static_cast<uint64_t>(step), {});
  const Rollout rollout = samples_->finish(samples_->begin(std::move(request)));
  save_samples(sample_files_, options_.samples_folder, world_, rollout, step, /*reward_names=*/{});

  // The batches are made again, with the student's completions as targets. An empty one is left
  // out.
  size_t next = 0;
  for (data::MicroBatch& batch : batches.micro_batches) {
    std::vector<data::Sample> samples;
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      const RolloutGroup& group = rollout.groups.at(next++);
      const auto& completion = group.samples.at(0).completion.token_ids;
      if (!completion.empty()) samples.push_back(data::completion_sample(group.prompt, completion));
    }
    batch = data::make_micro_batch(std::move(samples));
  }
  return batches;
}

SampledTokenObjective::SampledTokenObjective(StepSource source,
                                             std::unique_ptr<roles::FrozenAnswers> teacher,
                                             Options options)
    : BatchObjective(std::move(source)), teacher_(std::move(teacher)), options_(options) {}
SampledTokenObjective::~SampledTokenObjective() = default;

void SampledTokenObjective::announce(int64_t step, const data::BatchStream::Step& batches) {
  const uint64_t count = batches.micro_batches.size();
  for (uint64_t i = 0; i < count && options_.asks; ++i) {
    const data::MicroBatch& batch = batches.micro_batches[i];
    const uint64_t request = request_id(step, i, count, options_.dp_rank, options_.dp_size);
    std::optional<roles::PendingPayload> pending;
    if (batch.num_targets() > 0)
      pending = teacher_->send(request, step, batch.tokens, batch.predict_positions);
    in_flight_.push_back(std::move(pending));
  }
}

at::Tensor SampledTokenObjective::batch_loss(const models::Head& head, const at::Tensor& rows,
                                             const data::MicroBatch& batch, StepSums& sums) {
  std::optional<roles::PendingPayload> pending = std::move(in_flight_.front());
  in_flight_.pop_front();
  const auto logps = losses::linear_log_probs(
      rows, head.weight, bias_of_drawn_ids(head, options_.num_ids), batch.targets,
      {.temperature = options_.temperature, .entropy = true}, head.vocab, head.softcap);
  const at::Tensor teacher =
      pending ? teacher_->receive(std::move(*pending), &sums.values[kWaitSeconds]).logps
              : at::empty({0});
  // From here on the loss works on two numbers a token, in host memory.
  const std::vector<at::Tensor> here = losses::in_host_memory({logps.log_probs, logps.entropy});
  const at::Tensor& log_probs = here[0];
  // A policy gradient of the reverse KL: the advantage of a drawn token is the teacher's log p
  // minus the student's, so their mean is minus the KL.
  losses::PolicyInputs inputs{
      .policy_logps = log_probs,
      .sequence_of_row = at::zeros({batch.num_targets()}, at::kLong),
      .token_advantages = losses::distillation_advantages(log_probs.detach(), teacher),
      .num_sequences = 1};
  sums.count += static_cast<double>(batch.num_targets());
  sums.values[kReverseKl] -= inputs.token_advantages.to(at::kDouble).sum().item<double>();
  sums.values[kEntropy] += here[1].to(at::kDouble).sum().item<double>();
  return losses::policy_loss(inputs, {.loss_type = losses::PolicyLossType::kDapo}).loss_sum;
}

void SampledTokenObjective::add_metrics(const StepSums& sums, MetricsRow& row) {
  row.add("kd_loss", sums.values[kReverseKl] / sums.count);
  row.add("reverse_kl", sums.values[kReverseKl] / sums.count);
  row.add("entropy", sums.values[kEntropy] / sums.count);
  row.add("teacher_wait_time", sums.values[kWaitSeconds] / static_cast<double>(options_.dp_size));
}

}  // namespace retort::recipes
