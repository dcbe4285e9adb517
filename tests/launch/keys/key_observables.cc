#include "tests/launch/keys/key_observables.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "launch/backends/role_variables.h"
#include "launch/kubernetes/manifests.h"
#include "launch/plan/plan_json.h"
#include "launch/plan/role_plan.h"
#include "launch/process/child_process.h"
#include "launch/slurm/texts.h"
#include "models/config/config.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/distill/on_policy.h"
#include "recipes/dpo/setup.h"
#include "recipes/kto/setup.h"
#include "recipes/losses/bradley_terry.h"
#include "recipes/losses/counterparts.h"
#include "recipes/losses/kto.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/pair_weights.h"
#include "recipes/losses/policy.h"
#include "recipes/losses/preference.h"
#include "recipes/rejection_sampling/select.h"
#include "recipes/rewards/reward.h"
#include "recipes/roles/external_roles.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/rollout/draw_options.h"
#include "recipes/run/inputs/batch_options.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/inputs/episode_options.h"
#include "recipes/run/rank/agent_options.h"
#include "recipes/run/rank/student_options.h"
#include "recipes/type/registry.h"
#include "tests/data/word_tokenizer.h"

namespace retort::test::observed {
namespace {

using recipes::Recipe;

// The values one after the other, numbers to their last digit.
template <class... Values>
std::string text(const Values&... values) {
  std::ostringstream out;
  out.precision(17);
  ((out << values << ' '), ...);
  return out.str();
}

template <class Values>
std::string list(const Values& values) {
  std::ostringstream out;
  for (const auto& value : values)
    out << value << ", ";
  return out.str();
}

std::shared_ptr<const data::Dataset> open(const Seen& seen,
                                          const std::vector<data::Source>& sources) {
  return std::make_shared<data::Dataset>(sources, seen.recipe.data,
                                         models::Tokenizer::load(seen.recipe.student().model),
                                         recipes::load_chat(seen.recipe), seen.folder / "cache");
}

// Ids, a star behind those that are targets; a bar behind each sample.
std::string tokens(const data::MicroBatch& batch) {
  std::string all = "[";
  for (const data::Sample& sample : batch.samples) {
    for (size_t i = 0; i < sample.input_ids.size(); ++i)
      all += std::to_string(sample.input_ids[i]) + (sample.is_target[i] ? "* " : " ");
    all += "| ";
  }
  return all + "]";
}

at::Tensor numbers(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

recipes::RolloutWorker::Options rollout(const Seen& seen) {
  const std::string& model = seen.recipe.student().model;
  return recipes::rollout_options(seen.recipe, models::read_model_config(model),
                                  models::Tokenizer::load(model));
}

}  // namespace

std::string plan(const Seen& seen) { return launch::plan_json(seen.recipe); }

std::string environment(const Seen& seen) {
  std::string all;
  for (const auto& [name, role] : seen.recipe.roles) {
    const int64_t threads =
        launch::threads_per_process(role.world.threads, seen.recipe.num_processes());
    const auto variables = launch::role_variables(seen.recipe, role);
    all += name + ": " + list(launch::child_environment(threads, variables));
  }
  return all;
}

std::string batch(const Seen& seen) {
  return launch::batch_script(
      {.recipe = seen.recipe, .run_folder = "/runs/a", .program = "/opt/retort/bin/retort"});
}

std::string manifests(const Seen& seen) {
  return launch::kubernetes_manifests(seen.recipe, {.secret = "the run's secret"});
}

std::string timeout(const Seen& seen) {
  return format_duration(recipes::student_timeout(seen.recipe));
}

std::string roles(const Seen& seen) { return list(recipes::serving_roles(seen.recipe)); }

std::string device_maps(const Seen& seen) {
  std::string all;
  for (const auto& [name, role] : seen.recipe.roles)
    for (const auto& [peer, map] : recipes::device_maps_of(seen.recipe, name))
      for (const auto& [here, there] : map)
        all += text(name, here, "to", peer, there);
  return all;
}

std::string agents(const Seen& seen) {
  std::string all;
  for (const auto& [name, role] : seen.recipe.roles) {
    recipes::RankContext context;
    context.recipe = seen.recipe;
    context.role = name;
    const rpc::RpcOptions o = recipes::agent_options(context, at::kCPU).rpc;
    all += text(name, list(o.transports), o.bind, o.advertise, o.port, enum_name(o.encryption),
                o.spin.count(), list(o.channels), o.timeout.count(),
                o.queue_timeout.value_or(Duration(-1)).count(), o.heartbeats().count(),
                o.peer_timeout.count(), o.max_inflight_bytes.bytes, o.max_inflight_calls,
                o.receive_budget.bytes, o.max_message_bytes.bytes);
  }
  return all;
}

std::string inputs(const Seen& seen) {
  std::string all;
  for (const auto& input : recipes::recipe_type(seen.recipe).inputs(seen.recipe))
    all += text(input.key, input.path);
  return all;
}

std::string trainer(const Seen& seen) {
  const Recipe& recipe = seen.recipe;
  const int64_t steps = recipes::total_steps(recipe.train, [&] {
    return data::BatchStream(open(seen, recipe.data.train), recipes::batch_options(recipe, 0))
        .steps_per_epoch();
  });
  const auto options = recipes::trainer_options(recipe.train, steps);

  std::string all =
      text(steps, options.adamw.beta1, options.adamw.beta2, options.adamw.eps,
           options.adamw.weight_decay, list(options.adamw.no_decay_suffixes), options.max_grad_norm,
           options.bucket_bytes, options.loss_scale.initial_scale, options.loss_scale.min_scale,
           options.loss_scale.window);
  for (int64_t step = 0; step < steps; ++step)
    all += text(options.schedule.at(step));
  return all;
}

std::string loop(const Seen& seen) {
  const recipes::TrainOptions& train = seen.recipe.train;
  const auto steps = recipes::loop_options(train, 1);
  const auto checkpoints = recipes::checkpoint_options(train);
  return text(steps.logging_steps, steps.log_layer_grad_norms, steps.eval_steps, steps.save_steps,
              steps.exit_interval, steps.skip_nonfinite_steps, checkpoints.save_total_limit,
              checkpoints.async, steps.eval_on_start, steps.stop_if_diverged,
              steps.continue_on_save_error, steps.best.metric, steps.best.greater_is_better,
              steps.best.patience);
}

std::string batches(const Seen& seen) {
  data::BatchStream stream(open(seen, seen.recipe.data.train),
                           recipes::batch_options(seen.recipe, 0));
  std::string all;
  for (int step = 0; step < 4; ++step) {
    const data::BatchStream::Step next = stream.next();
    all += text("step", step, "epoch", next.epoch);
    for (const data::MicroBatch& batch : next.micro_batches)
      all += tokens(batch);
  }
  return all;
}

std::string batches_or_error(const Seen& seen) {
  try {
    return batches(seen);
  } catch (const Error& error) {
    return error.message();
  }
}

std::string evaluation(const Seen& seen) {
  const auto& sources = seen.recipe.data.eval;
  if (sources.empty()) return "none";
  std::string all;
  for (const data::MicroBatch& batch :
       data::eval_batches(*open(seen, sources), recipes::batch_options(seen.recipe, 0)))
    all += tokens(batch);
  return all;
}

std::string divergence(const Seen& seen) {
  const losses::DivergenceOptions options = seen.recipe.distill->divergence();
  return text(enum_name(options.type), options.beta, options.skew_lambda, options.temperature,
              enum_name(options.tail), options.scale_by_temperature_squared, options.kd_ratio);
}

std::string payload(const Seen& seen) {
  const retort::roles::PayloadSpec spec = seen.recipe.distill->payload_spec(seen.recipe.seed);
  return text(static_cast<int>(spec.kind), spec.top_k, spec.temperature, spec.bfloat16,
              spec.num_samples, spec.replacement, static_cast<int>(spec.support));
}

std::string on_policy_steps(const Seen& seen) {
  std::string all;
  for (int64_t step = 1; step <= 50; ++step)
    all += recipes::is_on_policy(static_cast<uint64_t>(seen.recipe.seed), step,
                                 seen.recipe.distill->lmbda)
               ? '1'
               : '0';
  return all;
}

std::string preference(const Seen& seen) {
  const losses::PreferenceOptions options = seen.recipe.dpo->preference();
  losses::PreferenceInputs inputs{.policy_chosen = numbers({-3, -5}),
                                  .policy_rejected = numbers({-4, -4.5}),
                                  .reference_chosen = {},
                                  .reference_rejected = {},
                                  .chosen_tokens = numbers({3, 4}),
                                  .rejected_tokens = numbers({4, 2}),
                                  .counterparts = {}};
  if (losses::needs_reference(options)) {
    inputs.reference_chosen = numbers({-3.5, -5});
    inputs.reference_rejected = numbers({-3.8, -4.6});
  }
  if (losses::needs_counterparts(options))
    inputs.counterparts = losses::counterparts(inputs.policy_chosen, inputs.policy_rejected,
                                               inputs.reference_chosen, inputs.reference_rejected);
  if (options.use_weighting) inputs.pair_weights = numbers({0.5, 0.8});

  // Of a pair with 3 and 4 tokens, and one with 4 and 2.
  const at::Tensor rows = at::tensor({0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3}, at::kLong);
  const double tokens =
      losses::shared_length_weights(rows, 2, options.ld_alpha.value_or(1)).sum().item<double>();
  const auto result = losses::preference_loss(inputs, options);
  return text(result.loss_sum.item<double>(), result.chosen_nll_sum.item<double>(), tokens);
}

std::string preference_prefetch(const Seen& seen) {
  return text(recipes::dpo_objective_options(*seen.recipe.dpo, 0, 1).prefetch);
}

std::string cross_entropy(const Seen& seen) {
  const at::Tensor rows = numbers({0.5, -1, 2, 1}).view({2, 2});
  const at::Tensor head = numbers({1, 0, -0.5, 2, 0.3, 0.1}).view({3, 2});
  const at::Tensor targets = at::tensor({0, 2}, at::kLong);
  const auto result = losses::linear_cross_entropy(rows, head, {}, targets, 0, {}, 0,
                                                   seen.recipe.sft.value().loss_type);
  return text(result.loss_sum.item<double>());
}

std::string kto(const Seen& seen) {
  const losses::KtoLossOptions options = seen.recipe.kto->loss();
  const auto result = losses::kto_loss({.policy = numbers({-3, -5}),
                                        .reference = numbers({-3.5, -4}),
                                        .desirable = {true, false},
                                        .kl = losses::needs_kl(options) ? 0.3 : 0},
                                       options);
  return text(result.loss_sum.item<double>());
}

std::string kto_prefetch(const Seen& seen) {
  return text(recipes::kto_objective_options(*seen.recipe.kto, 0, 1).prefetch);
}

std::string bradley_terry(const Seen& seen) {
  const auto result = losses::bradley_terry_loss(
      {.chosen = numbers({0.5, -1}), .rejected = numbers({0.25, 2}), .margin = {}},
      seen.recipe.reward_model->loss());
  return text(result.loss_sum.item<double>());
}

std::string policy(const Seen& seen) {
  const losses::PolicyOptions options = seen.recipe.grpo->policy();
  losses::PolicyInputs inputs{.policy_logps = numbers({-1, -2, -0.5, -1.5, -1}),
                              .old_logps = numbers({-1.3, -1.5, -0.9, -1.1, -0.8}),
                              .reference_logps = {},
                              .generator_logps = {},
                              .sequence_of_row = at::tensor({0, 0, 1, 1, 1}, at::kLong),
                              .advantages = numbers({1, -0.5}),
                              .token_advantages = {},
                              .num_sequences = 2};
  if (options.beta > 0) inputs.reference_logps = numbers({-1.1, -1.8, -0.7, -1.2, -1.4});
  if (options.sampling_correction != losses::SamplingCorrection::kNone)
    inputs.generator_logps = numbers({-2.1, -1.3, -0.9, -1.1, -1});

  const auto result = losses::policy_loss(inputs, options);
  const double divisor = losses::policy_divisor(
      options.loss_type, {.sequences = 2, .tokens = 5, .max_completion_tokens = 4});
  return text(result.loss_sum.item<double>() / divisor);
}

std::string draw(const Seen& seen) {
  const auto options = recipes::draw_options(rollout(seen), /*num_ids=*/100, /*greedy=*/false);
  const models::SamplingOptions& sampling = options.sampling;
  return text(options.max_new_tokens, options.min_new_tokens, sampling.temperature, sampling.top_p,
              sampling.min_p, sampling.typical_p, sampling.repetition_penalty,
              sampling.presence_penalty, sampling.frequency_penalty, sampling.top_k,
              sampling.seed) +
         "end: " + list(options.eos_token_ids) + "stop: " + list(options.stop) +
         list(options.stop_token_ids);
}

std::string engine(const Seen& seen) {
  const models::EngineOptions options = seen.recipe.generation->engine();
  return text(options.kv_cache_bytes, options.max_tokens_per_step, options.max_sequences);
}

std::string sync(const Seen& seen) {
  const recipes::WeightSyncOptions options = rollout(seen).sync;
  return text(options.every_steps, options.bucket_bytes.bytes, enum_name(options.in_flight));
}

std::string episodes(const Seen& seen) {
  const Recipe& recipe = seen.recipe;
  const auto options = recipes::episode_options(recipe, recipes::load_chat(recipe));
  const std::string& role = recipe.environment->role;
  const auto plans = launch::plan_roles(recipe);
  const auto plan = std::ranges::find(plans, role, &launch::RolePlan::name);
  return text(options.max_turns, options.max_tokens, options.timeout.count(),
              options.episode_timeout.count(), enum_name(options.format), plan->model,
              recipes::load_timeout_of(recipe, role).count());
}

std::string scores(const Seen& seen) {
  rewards::RewardSet rewards(seen.recipe.rewards);
  const std::vector<rewards::RewardInput> inputs{
      {.completion = "the answer is 42", .reference = "42", .num_tokens = 4, .origin = "a:1"},
      {.completion = "7", .reference = "7", .num_tokens = 1, .origin = "a:2"}};
  std::string all = list(rewards.names());
  for (const rewards::Scored& scored : rewards.score(inputs))
    all += text(scored.total.value_or(-1));
  return all;
}

// Two prompts: three samples, of which two are equal, and one.
std::string kept(const Seen& seen) {
  const std::vector<recipes::Candidate> candidates{
      {.prompt = 0, .reward = 0.8, .sample_id = 0, .row_hash = "a"},
      {.prompt = 0, .reward = 0.8, .sample_id = 1, .row_hash = "a"},
      {.prompt = 0, .reward = 0.6, .sample_id = 2, .row_hash = "b"},
      {.prompt = 1, .reward = 0.3, .sample_id = 3, .row_hash = "c", .truncated = true}};
  return list(recipes::select(candidates, *seen.recipe.rejection_sampling));
}

}  // namespace retort::test::observed
