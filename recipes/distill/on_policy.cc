#include "recipes/distill/on_policy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/random.h"
#include "recipes/data/completion_sample.h"
#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/policy.h"
#include "recipes/losses/span_advantages.h"
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

// Which of the micro-batch's samples each row is of, [R] int64.
at::Tensor sequence_of_rows(const data::MicroBatch& batch) {
  at::Tensor sequences = at::empty({batch.num_targets()}, at::kLong);
  int64_t* sequence = sequences.mutable_data_ptr<int64_t>();
  const at::Tensor positions = batch.predict_positions.contiguous();
  const int64_t* position = positions.const_data_ptr<int64_t>();
  int64_t current = 0;
  for (int64_t r = 0; r < positions.numel(); ++r) {
    while (position[r] >= batch.tokens.cu_seqlens[static_cast<size_t>(current) + 1])
      ++current;
    sequence[r] = current;
  }
  return sequences;
}

// The log-probabilities with which the rows' tokens were drawn, [R].
at::Tensor drawn_logps(const data::MicroBatch& batch) {
  at::Tensor logps = at::empty({batch.num_targets()}, at::kFloat);
  float* next = logps.mutable_data_ptr<float>();
  for (const data::Sample& sample : batch.samples) {
    if (static_cast<int64_t>(sample.drawn_logps.size()) != sample.num_targets())
      throw Error(ErrorCode::kInvalidArgument,
                  "sample " + sample.origin +
                      ": its generator does not say how probable its tokens were when they were "
                      "drawn, which distill.sampling_correction needs");
    next = std::copy(sample.drawn_logps.begin(), sample.drawn_logps.end(), next);
  }
  return logps;
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

// What stands before the last turn of each sample is its prompt.
RolloutRequest OnPolicySource::request_of(const data::BatchStream::Step& batches,
                                          int64_t step) const {
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
  return request;
}

std::vector<PendingRollout*> OnPolicySource::in_flight() {
  std::vector<PendingRollout*> waiting;
  for (Begun& begun : begun_)
    if (begun.pending) waiting.push_back(&*begun.pending);
  return waiting;
}

// The student of now, after `done` steps, draws one completion for each prompt of `step`, so its
// weights are pushed before.
void OnPolicySource::begin(int64_t step, int64_t done) {
  Begun begun{.step = step, .batches = data_(step), .pending = {}};
  if (is_on_policy(options_.seed, step, options_.lmbda)) {
    samples_->sync(trainer_.decoder(), static_cast<uint64_t>(done) + 1, in_flight());
    begun.pending = samples_->begin(request_of(begun.batches, step));
  }
  begun_.push_back(std::move(begun));
}

data::BatchStream::Step OnPolicySource::operator()(int64_t step) {
  const DrawAhead& draws = options_.draws;
  const int64_t done = step - 1 - draws.asked(step);
  if (next_ == 0) next_ = step;
  const auto may_begin = [&](int64_t next) {
    const bool is_there = draws.max_steps == 0 || next <= draws.max_steps;
    return is_there && next - draws.drawn(next) <= done + 1;
  };
  for (; may_begin(next_); ++next_)
    begin(next_, done);

  RETORT_CHECK(!begun_.empty() && begun_.front().step == step)
      << "step " << step << " was not begun";
  Begun begun = std::move(begun_.front());
  begun_.pop_front();
  if (!begun.pending) return std::move(begun.batches);
  const Rollout rollout = samples_->finish(std::move(*begun.pending));
  save_samples(sample_files_, options_.samples_folder, world_, rollout, step, /*reward_names=*/{});
  drawn_[step] = {.weight_version = rollout.weight_version,
                  .generation_seconds = rollout.generation_seconds,
                  .wait_seconds = rollout.wait_seconds};
  take_completions(rollout, begun.batches);
  return std::move(begun.batches);
}

void OnPolicySource::add_metrics(MetricsRow& row) {
  const auto drawn = drawn_.extract(row.step);
  if (!drawn) return;
  row.add("generation_time", drawn.mapped().generation_seconds)
      .add("generator_wait_time", drawn.mapped().wait_seconds);
  if (options_.draws.max_staleness == 0) return;
  const auto version = static_cast<int64_t>(drawn.mapped().weight_version);
  row.add("weight_version", version).add("staleness", row.step - version);
}

// The batches are made again, with the student's completions as targets. An empty one is left out.
void OnPolicySource::take_completions(const Rollout& rollout,
                                      data::BatchStream::Step& batches) const {
  size_t next = 0;
  for (data::MicroBatch& batch : batches.micro_batches) {
    std::vector<data::Sample> samples;
    for (const data::Sample& row : batch.samples) {
      const RolloutGroup& group = rollout.groups.at(next++);
      const models::Completion& drawn = group.samples.at(0).completion;
      const auto& completion = drawn.token_ids;
      if (completion.empty()) continue;
      samples.push_back(data::completion_sample(group.prompt, completion));
      samples.back().drawn_logps = drawn.sampling_logps;
      if (options_.both) samples.back().reading = reading_of_draw(row, completion, *options_.both);
    }
    batch = data::make_micro_batch(std::move(samples));
  }
}

SampledTokenObjective::SampledTokenObjective(StepSource source,
                                             std::unique_ptr<roles::FrozenAnswers> teacher,
                                             Options options)
    : BatchObjective(std::move(source)), teacher_(std::move(teacher)), options_(options) {}
SampledTokenObjective::~SampledTokenObjective() = default;

SampledTokenObjective::Asked SampledTokenObjective::ask(const data::MicroBatch& batch,
                                                        uint64_t request, int64_t step) {
  Asked asked;
  if (batch.num_targets() == 0) return asked;
  if (!options_.both) {
    asked.pending = teacher_->send(request, step, batch.tokens, batch.predict_positions);
    return asked;
  }

  // A teacher with another tokenizer reads tokens of its own. The sign that ends a turn is a span
  // like the others: whether the student stops is its choice too.
  AlignedBatch aligned = align(batch, *options_.both);
  asked.num_unaligned = aligned.num_unaligned;
  asked.spans = std::move(aligned.groups);
  asked.spans.insert(asked.spans.end(), aligned.ends.begin(), aligned.ends.end());
  if (!asked.spans.empty())
    asked.pending =
        teacher_->send(request, step, aligned.teacher.tokens, aligned.teacher.predict_positions);
  return asked;
}

void SampledTokenObjective::announce(int64_t step, const data::BatchStream::Step& batches) {
  const uint64_t count = batches.micro_batches.size();
  for (uint64_t i = 0; i < count && options_.asks; ++i)
    in_flight_.push_back(ask(batches.micro_batches[i],
                             request_id(step, i, count, options_.dp_rank, options_.dp_size), step));
}

at::Tensor SampledTokenObjective::advantages(Asked asked, const at::Tensor& log_probs,
                                             StepSums& sums) {
  const at::Tensor teacher =
      asked.pending ? teacher_->receive(std::move(*asked.pending), &sums.values[kWaitSeconds]).logps
                    : at::empty({0});
  if (!options_.both) {
    at::Tensor tokens = losses::distillation_advantages(log_probs, teacher);
    sums.values[kReverseKl] -= tokens.to(at::kDouble).sum().item<double>();
    return tokens;
  }
  const auto spans = losses::span_advantages(log_probs, teacher, asked.spans);
  sums.values[kReverseKl] += spans.reverse_kl_sum;
  sums.values[kUnaligned] += static_cast<double>(asked.num_unaligned);
  for (const losses::TokenGroup& span : asked.spans)
    sums.values[kAlignedTokens] += static_cast<double>(span.student_end - span.student_begin);
  return spans.tokens;
}

at::Tensor SampledTokenObjective::batch_loss(const models::Head& head, const at::Tensor& rows,
                                             const data::MicroBatch& batch, StepSums& sums) {
  Asked asked = std::move(in_flight_.front());
  in_flight_.pop_front();
  const auto logps = losses::linear_log_probs(
      rows, head.weight, bias_of_drawn_ids(head, options_.num_ids), batch.targets,
      {.temperature = options_.temperature, .entropy = true}, head.vocab, head.softcap);
  // From here on the loss works on two numbers a token, in host memory.
  const std::vector<at::Tensor> here = losses::in_host_memory({logps.log_probs, logps.entropy});
  const at::Tensor& log_probs = here[0];
  // A policy gradient of the reverse KL: the advantage of a drawn token is the teacher's log p
  // minus the student's, so their mean is minus the KL.
  const bool corrects = options_.sampling_correction != losses::SamplingCorrection::kNone;
  losses::PolicyInputs inputs{
      .policy_logps = log_probs,
      .generator_logps = corrects ? drawn_logps(batch) : at::Tensor(),
      .sequence_of_row = sequence_of_rows(batch),
      .token_advantages = advantages(std::move(asked), log_probs.detach(), sums),
      .num_sequences = std::max<int64_t>(1, static_cast<int64_t>(batch.samples.size()))};
  sums.count += static_cast<double>(batch.num_targets());
  sums.values[kEntropy] += here[1].to(at::kDouble).sum().item<double>();
  const auto result =
      losses::policy_loss(inputs, {.loss_type = losses::PolicyLossType::kDapo,
                                   .sampling_correction = options_.sampling_correction,
                                   .importance_sampling_cap = options_.importance_sampling_cap});
  sums.values[kDifference] += result.sampling_logp_difference_sum;
  sums.values[kRatio] += result.sampling_ratio_sum;
  sums.values[kRatios] += static_cast<double>(result.sampling_ratio_count);
  return result.loss_sum;
}

void SampledTokenObjective::add_metrics(const StepSums& sums, MetricsRow& row) {
  row.add("kd_loss", sums.values[kReverseKl] / sums.count);
  row.add("reverse_kl", sums.values[kReverseKl] / sums.count);
  row.add("entropy", sums.values[kEntropy] / sums.count);
  if (sums.values[kRatios] > 0)
    row.add("sampling_logp_difference/mean", sums.values[kDifference] / sums.count)
        .add("sampling_ratio/mean", sums.values[kRatio] / sums.values[kRatios]);
  if (options_.both) row.add("aligned_tokens", sums.values[kAlignedTokens] / sums.count);
  if (sums.values[kUnaligned] > 0)
    row.add("num_unaligned", static_cast<int64_t>(sums.values[kUnaligned]));
  row.add("teacher_wait_time", sums.values[kWaitSeconds] / static_cast<double>(options_.dp_size));
}

}  // namespace retort::recipes
