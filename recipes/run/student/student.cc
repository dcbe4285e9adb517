#include "recipes/run/student/student.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/malloc_tuning.h"
#include "models/decoder/decoder.h"
#include "parallel/vote.h"
#include "recipes/data/row_set.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/run/checkpoints/checkpoint_command.h"
#include "recipes/run/checkpoints/checkpoint_store.h"
#include "recipes/run/checkpoints/resume_point.h"
#include "recipes/run/inputs/answer_end.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/loop/agreement.h"
#include "recipes/run/metrics/rpc_metrics.h"
#include "recipes/run/rank/agent_options.h"
#include "recipes/run/rank/recipe_run.h"
#include "recipes/run/rank/role_connections.h"
#include "recipes/run/rank/student_options.h"
#include "recipes/run/rows/data_fingerprint.h"
#include "recipes/run/rows/row_look.h"
#include "recipes/run/rows/row_troubles.h"
#include "recipes/run/student/spike_watch.h"
#include "recipes/run/student/start.h"
#include "recipes/run/student/told_metrics.h"
#include "recipes/type/registry.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {
namespace {

// A warning goes into the log, and to whoever watches the run.
void warn(const RankContext& context, int64_t step, const std::string& message) {
  RETORT_LOG(kWarning) << message;
  context.warn("training", step, message);
}

// A signal may reach one rank alone, which says that it was interrupted. The others stop with it,
// and say only that they have stopped.
void report_end(const RankContext& context, const TrainLoopResult& result) {
  std::string state = "done";
  if (result.stopped_early) state = context.stop_requested() ? "interrupted" : "stopped";
  if (result.stopped_by_divergence) state = "diverged";
  std::string what = result.ended_early;
  if (result.stopped_early) what = "checkpoint saved at step " + std::to_string(result.step);
  if (!result.ended_early.empty() && context.rank == 0) {
    RETORT_LOG(kInfo) << "ended at step " << result.step << ": " << result.ended_early;
  }
  if (!result.divergence.empty() && context.rank == 0)
    context.warn(state, result.step, result.divergence);
  else
    context.report(state, result.step, what);
}

// Makes what runs the user's program for checkpoints, on the first rank: the only one that
// completes them. Null on the others, and where the recipe names no program.
std::unique_ptr<CheckpointCommand> checkpoint_command(const TrainOptions& train,
                                                      parallel::World& world) {
  // The vote ends all ranks at the start where the program is not in PATH.
  return parallel::run_on_all(world.all(), [&]() -> std::unique_ptr<CheckpointCommand> {
    if (train.checkpoint_command.empty() || world.rank() != 0) return nullptr;
    return std::make_unique<CheckpointCommand>(CheckpointCommand::Options{
        .argv = train.checkpoint_command, .timeout = train.checkpoint_command_timeout});
  });
}

CheckpointStore::Hooks hooks_of(CheckpointCommand* command, const RankContext& context) {
  CheckpointStore::Hooks hooks{
      .warn = [&context](int64_t step, const auto& what) { context.warn("saving", step, what); }};
  if (command == nullptr) return hooks;
  hooks.on_complete = [command](const auto& folder) { command->give(folder); };
  hooks.in_use = [command] { return command->in_use(); };
  return hooks;
}

void tell_of(CheckpointCommand* command, const RankContext& context, int64_t step) {
  if (command == nullptr) return;
  for (const std::string& message : command->take_messages())
    warn(context, step, message);
}

// Returns the error that refuses rows which were found bad beside training; null: there is none. It
// is kept rather than thrown, because the run still has to do what its last checkpoint needs.
std::exception_ptr refusal_of(RowLook& look) {
  try {
    look.refuse_if_bad();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return std::current_exception();
  }
  return nullptr;
}

// Warns of a loss or a gradient norm that leaves its usual range.
class Spikes {
 public:
  explicit Spikes(const RankContext& context) : context_(context) {}

  void see(const MetricsRow& row) {
    for (const auto& [name, value] : row.values) {
      if (name != "loss" && name != "grad_norm") continue;
      const double number = std::visit([](auto v) { return static_cast<double>(v); }, value);
      if (const auto said = watches_[name].see(name, row.step, number))
        warn(context_, row.step, *said);
    }
  }

 private:
  const RankContext& context_;
  std::map<std::string, SpikeWatch> watches_;
};

// The row holds the peak of the rank that took most memory: that one decides whether the run fits.
void add_device_memory(MetricsRow& row, parallel::World& world) {
  if (world.device().is_cpu()) return;
  const int64_t peak = world.all().all_reduce(world.peak_device_bytes(), parallel::ReduceOp::kMax);
  row.add("peak_device_memory", static_cast<double>(peak));
}

// Warns where the rows teach the student to end its answers with a sign at which no completion of
// it would be ended.
void warn_of_unheard_end(const RunContext& run, const data::RowSet& rows) {
  const auto warning = unheard_end(run.recipe(), run.chat, run.tokenizer, rows.has_messages());
  if (warning && run.rank.rank == 0) {
    RETORT_LOG(kWarning) << *warning;
  }
}

CheckpointStore::Options saving_options(const Recipe& recipe) {
  CheckpointStore::Options saving = checkpoint_options(recipe.train);
  if (const auto own = own_template(recipe)) saving.chat_template = own->text;
  return saving;
}

roles::Trainer::Options training_options(const RankContext& context, const LoopState& start,
                                         int64_t max_steps) {
  const RoleOptions& role = context.role_options();
  roles::Trainer::Options training = trainer_options(context.recipe.train, max_steps);
  training.lora_dropout = role.lora ? role.lora->lora_dropout : 0;
  training.dropout_seed = start.seed;
  return training;
}

// What a run tells of its steps while it trains, and what stops it: the hooks of its loop. What it
// is made of outlives it.
class StepReports {
 public:
  StepReports(const RunContext& run, const data::RowSet& rows, const roles::Trainer& trainer,
              RowLook& look, DataFingerprint& digest, CheckpointCommand* command);

  // Before the first step that is done now.
  void begin(int64_t step, int64_t max_steps);
  TrainLoopHooks hooks();
  // What is left to tell when the loop has ended. Returns what refuses rows that were found bad
  // beside training: to be thrown when what the run has to do for its checkpoint is done; null:
  // there are none. Collectives: a vote, where the loop has stopped early.
  std::exception_ptr end(const TrainLoopResult& result);

 private:
  bool time_is_up() const;
  void add_metrics(MetricsRow& row);
  void write(const MetricsRow& row);
  void after_step(int64_t step);
  void before_save(int64_t step);
  void after_save(int64_t step);

  const RankContext& context_;
  parallel::World& world_;
  const data::RowSet& rows_;
  const roles::Trainer& trainer_;
  RowLook& look_;
  DataFingerprint& digest_;
  CheckpointCommand* const command_;      // null: none
  const bool makes_calls_;                // to roles that serve
  std::unique_ptr<ToldMetrics> metrics_;  // null but on the first rank
  RpcMetrics calls_;
  Spikes spikes_;
  RowTroubles troubles_;
  std::chrono::steady_clock::time_point begin_;
  int64_t done_step_ = 0;
};

StepReports::StepReports(const RunContext& run, const data::RowSet& rows,
                         const roles::Trainer& trainer, RowLook& look, DataFingerprint& digest,
                         CheckpointCommand* command)
    : context_(run.rank),
      world_(run.world),
      rows_(rows),
      trainer_(trainer),
      look_(look),
      digest_(digest),
      command_(command),
      makes_calls_(!serving_roles(run.recipe()).empty()),
      calls_(run.agent),
      spikes_(context_),
      troubles_(rows, trainer.decoder().config().max_position_embeddings,
                [this](int64_t step, const std::string& what) { warn(context_, step, what); }) {}

void StepReports::begin(int64_t step, int64_t max_steps) {
  if (world_.rank() == 0) metrics_ = std::make_unique<ToldMetrics>(context_);
  context_.report("training", step, "of " + std::to_string(max_steps) + " steps");
  set_log_step(step + 1);
  begin_ = std::chrono::steady_clock::now();
  done_step_ = step;
}

TrainLoopHooks StepReports::hooks() {
  const auto warns = [this](int64_t step, const std::string& what) { warn(context_, step, what); };
  // One rank that must stop is enough: the loop agrees on it after each step.
  return {.stop_requested =
              [this] {
                return context_.stop_requested() || time_is_up() || look_.must_end(done_step_);
              },
          .add_metrics = [this](MetricsRow& row) { add_metrics(row); },
          .on_metrics = [this](const MetricsRow& row) { write(row); },
          .on_divergence = warns,
          .on_save_error = warns,
          .on_step = [this](int64_t step) { after_step(step); },
          .complete_state = [this](LoopState& state) { digest_.complete(state); },
          .on_save = [this](int64_t step) { before_save(step); },
          .on_saved = [this](int64_t step) { after_save(step); }};
}

bool StepReports::time_is_up() const {
  const auto& limit = context_.recipe.train.max_time;
  return limit && std::chrono::steady_clock::now() - begin_ >= *limit;
}

void StepReports::add_metrics(MetricsRow& row) {
  if (makes_calls_) calls_.add_to(row, world_.all());
  add_device_memory(row, world_);
}

void StepReports::write(const MetricsRow& row) {
  metrics_->write(row);
  troubles_.see_first(row.step);
  spikes_.see(row);
}

void StepReports::after_step(int64_t step) {
  digest_.after_step();
  done_step_ = step;
  context_.report("training", step, "");
  tell_of(command_, context_, step);
  set_log_step(step + 1);
}

void StepReports::before_save(int64_t step) {
  // A checkpoint holds the weights of the first replica alone: saved now, it would hide that
  // another one has different weights.
  check_replicas_agree(trainer_.decoder(), world_, "at step " + std::to_string(step));
  context_.report("saving", step, "");
}

void StepReports::after_save(int64_t step) {
  context_.report("training", step, "");
  if (metrics_) metrics_->flush(step);
}

std::exception_ptr StepReports::end(const TrainLoopResult& result) {
  if (metrics_) metrics_->flush(result.step);
  // Bad rows can have ended only a loop that stopped early (RowLook::must_end), and all ranks agree
  // on whether it did: so all of them come to this vote, or none.
  std::exception_ptr bad_rows;
  if (result.stopped_early) bad_rows = refusal_of(look_);
  look_.end();
  if (world_.rank() == 0) troubles_.tell(result.step);
  if (rows_.num_skipped() > 0) {
    RETORT_LOG(kWarning) << rows_.num_skipped()
                         << " bad samples were skipped (data.on_bad_sample: skip)";
  }
  return bad_rows;
}

// Waits for the user's program, which has the run's last checkpoint.
void finish_command(CheckpointCommand& command, const RankContext& context, int64_t step) {
  if (!command.in_use().empty())
    context.report("saving", step, "waits for train.checkpoint_command");
  command.finish();
  tell_of(&command, context, step);
}

// What the recipe is given, but for the student's vocabulary.
RunContext open_run(const RankContext& context, parallel::World& world, const std::string& day,
                    rpc::Agent& agent, rpc::PeerLinks& links) {
  return {.rank = context,
          .world = world,
          .tokenizer = models::Tokenizer::load(context.role_options().model),
          .chat = load_chat(context.recipe, day),
          .agent = agent,
          .links = links};
}

// Makes sure that all ranks read the same rows, and that a resumed run reads those of its
// checkpoint. A resumed run waits for the whole digest, because the comparison may refuse it. A new
// run waits only as long as its first step may wait, and compares later.
void settle_rows(DataFingerprint& digest, const RunContext& run, const RecipeRun& work,
                 const std::filesystem::path& checkpoint, Deadline first_step) {
  if (checkpoint.empty()) {
    digest.wait_before_training(std::max(first_step.remaining(), DataFingerprint::kLeastWait));
    return;
  }
  digest.finish();
  check_resumed_rows(run.rank, checkpoint, work, run.world);
}

// Brings the trainer and the recipe's run to the step where the loop begins, and makes sure that
// all replicas are there with the same weights.
void start_training(roles::Trainer& trainer, const RunContext& run, RecipeRun& work,
                    const std::filesystem::path& checkpoint, const LoopState& start) {
  if (!checkpoint.empty())
    read_checkpoint(checkpoint, [&] { trainer.load_state(checkpoint / "state"); });
  check_same_start(run.world, start.step);
  check_replicas_agree(trainer.decoder(), run.world, "at the start");
  // Only some ranks wait for other roles. One that waits in vain tells the others by the vote,
  // which would else wait for it in the collectives of the first step.
  parallel::run_on_all(run.world.all(), [&] { work.start(trainer, start); });
}

// All ranks have this error. With a program for checkpoints the first rank alone, which runs it,
// throws the error once the program is done: another rank that failed now would end the first one
// while its program still reads.
void tell_bad_rows(const std::exception_ptr& bad_rows, const TrainOptions& train,
                   bool has_command) {
  const bool another_tells = !train.checkpoint_command.empty() && !has_command;
  if (bad_rows && !another_tells) std::rethrow_exception(bad_rows);
}

}  // namespace

TrainLoopResult run_student(const RankContext& context) {
  const Recipe& recipe = context.recipe;
  const std::string& model = context.role_options().model;
  keep_freed_memory();
  parallel::World world(student_world_options(context));

  // All ranks agree on the checkpoint to go on from before any of them loads weights.
  const auto command = checkpoint_command(recipe.train, world);
  CheckpointStore checkpoints(context.run_folder, model, saving_options(recipe),
                              hooks_of(command.get(), context));
  const std::filesystem::path checkpoint = resume_point(context, world);
  RowLook look(context, world);
  models::Decoder decoder =
      read_checkpoint(checkpoint, [&] { return load_student(context, world, checkpoint); });

  // The recipe's run reads rows and reaches the other roles, through an agent that outlives it.
  const std::string day = template_day(context, checkpoint, world);
  rpc::Agent agent(agent_options(context, world.device()));
  rpc::PeerLinks links(agent, {.find = [&context](const std::string& peer, Deadline deadline) {
                         return find_peer(context, peer, deadline);
                       }});
  RunContext run = open_run(context, world, day, agent, links);
  run.vocab_rows = decoder.config().vocab_size;
  const Deadline first_step = Deadline::after(RowLook::kMostWait + DataFingerprint::kLeastWait);
  look.wait_before_training();
  std::unique_ptr<RecipeRun> work = recipe_type(recipe).make_run(run);
  warn_of_unheard_end(run, work->rows());

  // The digest is declared behind `work`, whose rows its thread reads: an error here ends the
  // thread first.
  auto digest = std::make_unique<DataFingerprint>(work->rows(), world);
  settle_rows(*digest, run, *work, checkpoint, first_step);
  const LoopState start = starting_state(context, checkpoint, day, context.role_options().world);
  const int64_t max_steps = total_steps(recipe.train, [&] { return work->steps_per_epoch(); });

  roles::Trainer trainer(std::move(decoder), world, training_options(context, start, max_steps));
  start_training(trainer, run, *work, checkpoint, start);

  StepReports reports(run, work->rows(), trainer, look, *digest, command.get());
  reports.begin(start.step, max_steps);
  const TrainLoopResult result =
      run_train_loop({.trainer = trainer,
                      .world = world,
                      .objective = work->objective(),
                      .evaluator = work->evaluator(),
                      .checkpoints = checkpoints},
                     start, loop_options(recipe.train, max_steps), reports.hooks());

  // Everything of the run ends before the wait for the user's program, which may take long over the
  // last checkpoint.
  const std::exception_ptr bad_rows = reports.end(result);
  digest.reset();
  work.reset();
  agent.close();
  agent.join();
  if (command) finish_command(*command, context, result.step);
  tell_bad_rows(bad_rows, recipe.train, command != nullptr);
  report_end(context, result);
  return result;
}

}  // namespace retort::recipes
