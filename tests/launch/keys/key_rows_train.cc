// Rows of the keys of `train:`.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {
namespace {

using namespace observed;

std::vector<KeyRow> length_rows() {
  const std::string no_rows = "train.per_device_train_batch_size=null";
  return {
      acts(kSftBase, "train.max_steps=20", trainer),
      acts(kSftBase, "train.num_train_epochs=3", trainer, {"train.max_steps=null"}),
      refused(kSftBase, "train.num_train_epochs=3", "exclude each other"),
      refused(kGrpoBase, "train.num_train_epochs=3", "is not for grpo", {"train.max_steps=null"}),
      acts(kSftBase, "train.per_device_train_batch_size=4", batches),
      acts(kSftBase, "train.tokens_per_batch=64", batches, {no_rows}),
      refused(kSftBase, "train.tokens_per_batch=64", "exclude each other"),
      acts(kDpoBase, "train.tokens_per_batch=32", batches, {no_rows}),
      refused(kDpoBase, "train.tokens_per_batch=31", "at least twice data.max_length (2 * 16)",
              {no_rows}),
      refused(kGrpoBase, "train.tokens_per_batch=64", "is not for grpo", {no_rows}),
      acts(kSftBase, "train.gradient_accumulation_steps=4", batches),
      acts(kSftBase, "train.batch_size_rampup_steps=4", batches),
      refused(kDistillBase, "train.batch_size_rampup_steps=4", "where a ramp begins"),
      refused(kGrpoBase, "train.batch_size_rampup_steps=4", "what its generator drew",
              {"train.gradient_accumulation_steps=2"}),
      in_run("train.max_time", "tests/recipes/runs/parallel_run_test.cc", "train.max_time=1ms"),
  };
}

std::vector<KeyRow> optimizer_rows() {
  const std::string restarts = "train.lr_scheduler_type=cosine_with_restarts";
  const std::string inverse = "train.lr_scheduler_type=inverse_sqrt";
  const std::string stable = "train.lr_scheduler_type=warmup_stable_decay";
  return {
      acts(kSftBase, "train.learning_rate=1.0e-3", trainer),
      acts(kSftBase, "train.lr_scheduler_type=linear", trainer),
      acts(kSftBase, "train.warmup_steps=3", trainer),
      acts(kSftBase, "train.warmup_ratio=0.3", trainer),
      refused(kSftBase, "train.warmup_ratio=0.3", "exclude each other", {"train.warmup_steps=3"}),
      acts(kSftBase, "train.min_lr=1.0e-5", trainer),
      refused(kSftBase, "train.min_lr=1.0e-5", "has no effect with lr_scheduler_type constant",
              {"train.lr_scheduler_type=constant"}),
      acts(kSftBase, "train.adam_beta1=0.5", trainer),
      acts(kSftBase, "train.adam_beta2=0.5", trainer),
      acts(kSftBase, "train.adam_epsilon=1.0e-6", trainer),
      acts(kSftBase, "train.weight_decay=0.1", trainer),
      acts(kSftBase, "train.no_decay=[bias]", trainer, {"train.weight_decay=0.1"}),
      refused(kSftBase, "train.no_decay=[bias]", "has no effect with weight_decay: 0"),
      acts(kSftBase, "train.lr_decay_steps=7", trainer),
      acts(kSftBase, "train.lr_decay_steps=7", trainer, {"train.warmup_ratio=0.5"}),
      refused(kSftBase, "train.lr_decay_steps=7", "has no effect with lr_scheduler_type constant",
              {"train.lr_scheduler_type=constant"}),
      refused(kSftBase, "train.lr_decay_steps=7", "must be above warmup_steps",
              {"train.warmup_steps=7"}),
      acts(kSftBase, "train.lr_num_cycles=3", trainer, {restarts}),
      refused(kSftBase, "train.lr_num_cycles=3", "has no effect without lr_scheduler_type"),
      refused(kSftBase, "train.lr_num_cycles=0", "must be at least 1", {restarts}),
      acts(kSftBase, "train.lr_power=2", trainer, {"train.lr_scheduler_type=polynomial"}),
      refused(kSftBase, "train.lr_power=2", "has no effect without lr_scheduler_type: polynomial"),
      refused(kSftBase, "train.lr_power=0", "above 0", {"train.lr_scheduler_type=polynomial"}),
      acts(kSftBase, "train.lr_timescale=3", trainer, {inverse}),
      refused(kSftBase, "train.lr_timescale=3", "without lr_scheduler_type: inverse_sqrt"),
      refused(kSftBase, "train.lr_timescale=0", "must be at least 1", {inverse}),
      refused(kSftBase, "train.min_lr=1.0e-5", "has no effect with lr_scheduler_type inverse_sqrt",
              {inverse}),
      refused(kSftBase, "train.lr_decay_steps=7", "has no effect with lr_scheduler_type inverse",
              {inverse}),
      acts(kSftBase, "train.lr_cooldown_steps=4", trainer, {stable, "train.lr_cooldown_steps=3"}),
      refused(kSftBase, stable, "needs lr_cooldown_steps"),
      refused(kSftBase, "train.lr_cooldown_steps=4", "has no effect without lr_scheduler_type"),
      refused(kSftBase, "train.lr_cooldown_steps=0", "must be at least 1",
              {stable, "train.lr_cooldown_steps=3"}),
      refused(kSftBase, "train.lr_cooldown_steps=8", "must be at most the 10 steps",
              {stable, "train.lr_cooldown_steps=3", "train.warmup_steps=3"}),
      acts(kSftBase, "train.lr_cooldown_type=1-sqrt", trainer,
           {stable, "train.lr_cooldown_steps=3"}),
      refused(kSftBase, "train.lr_cooldown_type=linear", "has no effect without"),
      acts(kSftBase, "train.max_grad_norm=0.5", trainer),
      acts(kSftBase, "train.skip_nonfinite_steps=2", loop),
      acts(kDpoBase, "train.skip_nonfinite_steps=2", loop),
      refused(kKtoBase, "train.skip_nonfinite_steps=2", "z, which all rows share"),
      refused(kDpoBase, "train.skip_nonfinite_steps=2", "counterparts, which all pairs share",
              {"dpo.loss_type=aot"}),
      acts(kSftBase, "train.on_divergence=stop", loop),
      in_run("train.on_divergence", "tests/recipes/runs/skipped_steps_run_test.cc",
             "train.on_divergence=stop"),
      in_run("train.skip_nonfinite_steps", "tests/recipes/runs/skipped_steps_run_test.cc",
             "train.skip_nonfinite_steps=2"),
  };
}

std::vector<KeyRow> loss_scale_rows() {
  const std::vector<std::string> half{"roles.student.dtype=float16"};
  const std::string run = "tests/recipes/runs/float16_run_test.cc";
  const std::string wide = "has no effect without roles.student.dtype: float16";
  return {
      acts(kSftBase, "train.initial_loss_scale=1024", trainer, half),
      in_run("train.initial_loss_scale", run, "train.initial_loss_scale=16777216"),
      refused(kSftBase, "train.initial_loss_scale=1024", wide),
      refused(kSftBase, "train.initial_loss_scale=1024", wide, {"roles.student.dtype=bfloat16"}),
      refused(kSftBase, "train.initial_loss_scale=0.5", "must not be below min_loss_scale", half),
      acts(kSftBase, "train.min_loss_scale=0.5", trainer, half),
      in_run("train.min_loss_scale", "tests/recipes/loop/train_loop_test.cc", ".min_scale = 4"),
      refused(kSftBase, "train.min_loss_scale=0.5", wide),
      refused(kSftBase, "train.min_loss_scale=0", "above 0", half),
      acts(kSftBase, "train.loss_scale_window=10", trainer, half),
      in_run("train.loss_scale_window", run, "train.loss_scale_window=3"),
      refused(kSftBase, "train.loss_scale_window=10", wide),
      refused(kSftBase, "train.loss_scale_window=0", "must be at least 1", half),
  };
}

std::vector<KeyRow> noise_rows() {
  const std::string key = "train.neftune_noise_alpha";
  return {
      in_run(key, "tests/recipes/runs/embedding_noise_run_test.cc", key + "=5"),
      refused(kDistillBase, key + "=5", "is for recipe: sft"),
      refused(kDpoBase, key + "=5", "is for recipe: sft"),
      refused(kRejectionBase, key + "=5", "is for recipe: sft"),
      refused(kSftBase, key + "=0", "leave it out for no noise"),
  };
}

std::vector<KeyRow> memory_rows() {
  const std::string two = "roles.student.world.dp=2";
  return {
      acts(kSftBase, "train.gradient_checkpointing=true", plan),
      acts(kSftBase, "train.gradient_checkpointing_every=2", plan,
           {"train.gradient_checkpointing=true"}),
      refused(kSftBase, "train.gradient_checkpointing_every=2", "has no effect without"),
      acts(kSftBase, "train.grad_bucket_bytes=4096", trainer, {two}),
      // once dead in the plan: a sharded optimizer holds what four buckets of others send
      acts(kSftBase, "train.grad_bucket_bytes=4096", plan,
           {two, "roles.student.world.distributed_optimizer=true",
            "train.gradient_checkpointing=true", "train.per_device_train_batch_size=1"}),
      // once dead
      refused(kSftBase, "train.grad_bucket_bytes=4096", "gradients are not summed over ranks"),
  };
}

std::vector<KeyRow> when_rows() {
  return {
      acts(kSftBase, "train.logging_steps=5", loop),
      acts(kSftBase, "train.log_layer_grad_norms=true", loop),
      acts(kSftBase, "train.eval_steps=5", loop),
      refused(kDistillBase, "train.eval_steps=5", "has no effect without data.eval"),
      acts(kSftBase, "train.save_steps=5", loop),
      in_run("train.save_steps", "tests/recipes/runs/parallel_run_test.cc", "train.save_steps=5"),
      refused(kGrpoBase, "train.save_steps=5", "must be a multiple of grpo.num_iterations",
              {"grpo.num_iterations=2"}),
      acts(kSftBase, "train.exit_interval=5", loop),
      in_run("train.exit_interval", "tests/recipes/runs/skipped_steps_run_test.cc",
             "train.exit_interval=4"),
      refused(kGrpoBase, "train.exit_interval=5", "must be a multiple of grpo.num_iterations",
              {"grpo.num_iterations=2"}),
      acts(kSftBase, "train.save_total_limit=1", loop),
      in_run("train.save_total_limit", "tests/recipes/checkpoints/checkpoint_test.cc",
             ".save_total_limit = 2"),
      acts(kSftBase, "train.async_save=true", loop),
      in_run("train.async_save", "tests/recipes/runs/resume_run_test.cc", "train.async_save=true"),
      refused(kSftBase, "train.async_save=true", "has no effect with save_steps 0",
              {"train.save_steps=0"}),
      acts(kSftBase, "train.on_save_error=continue", loop),
      in_run("train.on_save_error", "tests/recipes/runs/damaged_checkpoint_run_test.cc",
             "train.on_save_error=continue"),
      refused(kSftBase, "train.on_save_error=continue", "has no effect with save_steps 0",
              {"train.save_steps=0"}),
  };
}

// What is made of evaluations and of checkpoints.
std::vector<KeyRow> best_model_rows() {
  const std::string by_loss = "train.metric_for_best_model=eval_loss";
  const std::string run = "tests/recipes/runs/early_stopping_run_test.cc";
  const std::string commands = "tests/recipes/runs/user_commands_run_test.cc";
  const std::string upload = "train.checkpoint_command=[upload]";
  return {
      acts(kSftBase, "train.eval_on_start=true", loop),
      in_run("train.eval_on_start", run, "train.eval_on_start=true"),
      refused(kDistillBase, "train.eval_on_start=true", "has no effect without data.eval"),
      acts(kSftBase, by_loss, loop),
      in_run("train.metric_for_best_model", run, by_loss),
      refused(kDistillBase, by_loss, "has no effect without data.eval"),
      refused(kSftBase, "train.metric_for_best_model=loss", "a metric of evaluations"),
      refused(
          kGrpoBase, "train.metric_for_best_model=eval_reward",
          "to be a multiple of train.save_steps",
          {"data.eval=[{path: FOLDER/more.jsonl}]", "train.eval_steps=5", "train.save_steps=10"}),
      acts(kSftBase, "train.greater_is_better=true", loop, {by_loss}),
      refused(kSftBase, "train.greater_is_better=true", "without metric_for_best_model"),
      acts(kSftBase, "train.early_stopping_patience=2", loop, {by_loss}),
      in_run("train.early_stopping_patience", run, "train.early_stopping_patience=4"),
      refused(kSftBase, "train.early_stopping_patience=2", "without metric_for_best_model"),
      refused(kSftBase, "train.early_stopping_patience=2", "has no effect with eval_steps 0",
              {by_loss, "train.eval_steps=0"}),
      refused(kSftBase, "train.early_stopping_patience=-1", "must be at least 0", {by_loss}),
      in_run("train.checkpoint_command", commands, "train.checkpoint_command=["),
      refused(kSftBase, "train.checkpoint_command=['']", "begins with an empty word"),
      in_run("train.checkpoint_command_timeout", commands, "train.checkpoint_command_timeout=1s"),
      refused(kSftBase, "train.checkpoint_command_timeout=1s", "without checkpoint_command"),
      refused(kSftBase, "train.checkpoint_command_timeout=0s", "must be longer than 0s", {upload}),
  };
}

}  // namespace

std::vector<KeyRow> train_rows() {
  std::vector<KeyRow> all;
  for (const auto& part : {length_rows, optimizer_rows, loss_scale_rows, noise_rows, memory_rows,
                           when_rows, best_model_rows})
    for (KeyRow& row : part())
      all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test
