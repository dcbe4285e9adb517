#include "recipes/run/student.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "base/deadline.h"
#include "base/freed_memory.h"
#include "base/log.h"
#include "base/today.h"
#include "models/checkpoint.h"
#include "models/lora/adapter.h"
#include "parallel/vote.h"
#include "recipes/lora_checks.h"
#include "recipes/registry.h"
#include "recipes/run/agent_options.h"
#include "recipes/run/agreement.h"
#include "recipes/run/answer_end.h"
#include "recipes/run/checkpoint_command.h"
#include "recipes/run/checkpoint_store.h"
#include "recipes/run/recipe_run.h"
#include "recipes/run/resume_point.h"
#include "recipes/run/resumed_run.h"
#include "recipes/run/role_connections.h"
#include "recipes/run/row_digest.h"
#include "recipes/run/row_look.h"
#include "recipes/run/row_troubles.h"
#include "recipes/run/rpc_metrics.h"
#include "recipes/run/spike_watch.h"
#include "recipes/run/student_model.h"
#include "recipes/run/student_options.h"
#include "recipes/run/template_day.h"
#include "recipes/run/told_metrics.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {
namespace {

// What chat templates print: the recipe's day, else that on which the run began, as its checkpoint
// has it; one of before days were kept has none, and prints the moment as it always did. The ranks
// may begin on both sides of midnight, so the first one says it.
std::string template_day(const RankContext& context, const std::filesystem::path& checkpoint,
                         parallel::World& world) {
  if (context.recipe.data.template_date) return *context.recipe.data.template_date;
  const std::string day = checkpoint.empty() ? today() : read_loop_state(checkpoint).template_day;
  return world.all().broadcast(day, 0);
}

// Which adapter the student is compared with; "": none is kept. A resumed run reads it again, and
// it must be the one that the run began with.
std::string first_adapter(const RankContext& context, const std::filesystem::path& checkpoint) {
  if (!keeps_first_adapter(context.recipe)) return "";
  const std::string& folder = *context.role_options().lora->adapter;
  if (!checkpoint.empty() && !read_loop_state(checkpoint).first_adapter) {
    RETORT_LOG(kWarning) << checkpoint.string()
                         << " was written when the reference was the model without an adapter; "
                            "from here on it is the adapter in "
                         << folder;
  }
  return models::adapter_fingerprint(folder);
}

// But for what is said of the rows (RowDigest::complete).
LoopState starting_state(const RankContext& context, const std::filesystem::path& checkpoint,
                         const std::string& day, parallel::Layout layout) {
  const uint64_t seed = static_cast<uint64_t>(context.recipe.seed);
  layout.threads = context.threads;
  const std::string adapter = first_adapter(context, checkpoint);
  if (checkpoint.empty())
    return {.seed = seed, .layout = layout, .template_day = day, .first_adapter = adapter};
  LoopState state = read_loop_state(checkpoint);
  if (state.seed != seed)
    throw Error(ErrorCode::kInvalidArgument, "the run was started with seed " +
                                                 std::to_string(state.seed) +
                                                 "; a resumed run must keep it");
  if (state.first_adapter.value_or(adapter) != adapter)
    throw Error(ErrorCode::kInvalidArgument,
                "the reference changed since " + checkpoint.string() +
                    ": it is the adapter that the run began with; restore "
                    "roles.student.lora.adapter and what is in its folder, or start a new run");
  const std::string now = layout_text(layout), then = layout_text(state.layout);
  if (now != then) {
    RETORT_LOG(kWarning) << "resuming with " << now << " a run that had " << then
                         << ": the numbers will agree, but not in their last bits";
  }
  state.layout = layout;
  state.template_day = day;
  state.first_adapter = adapter;
  return state;
}

// Where training goes on from must hold what the recipe trains.
void check_checkpoint_kind(const std::filesystem::path& checkpoint, const Recipe& recipe) {
  const RoleOptions& role = recipe.student();
  if (checkpoint.empty()) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(
        ErrorCode::kInvalidArgument,
        checkpoint.string() + " " + what + "; restore roles.student.lora, or start a new run");
  };
  const bool holds_adapter = models::is_adapter_folder(checkpoint);
  if (!role.lora && holds_adapter) refuse("is an adapter's, and the recipe trains a whole model");
  if (!role.lora) return;
  if (!holds_adapter) refuse("is a whole model's, and the recipe trains an adapter");
  const std::string difference =
      lora_difference(role_config(recipe, Recipe::kDrivingRole),
                      models::read_adapter_config(checkpoint), student_adapter(recipe));
  if (!difference.empty()) refuse("is of an adapter with other settings (" + difference + ")");
}

models::Decoder load_student(const RankContext& context, parallel::World& world,
                             const std::filesystem::path& checkpoint) {
  const RoleOptions& role = context.role_options();
  check_checkpoint_kind(checkpoint, context.recipe);
  // An adapter stands beside the model that it was begun with.
  const std::string model = checkpoint.empty() || role.lora ? role.model : checkpoint.string();
  context.report("loading", 0, model);
  const at::ScalarType dtype = models::parse_dtype(std::string(enum_name(role.dtype)));
  const models::Placement place = models::Placement::of(world);
  const auto classifier = student_classifier(context.recipe);
  models::Decoder decoder =
      classifier ? models::load_classifier(model, dtype, *classifier, place, world.device())
                 : models::load_decoder(model, dtype, place, world.device());
  if (role.lora) {
    const std::string from =
        checkpoint.empty() ? role.lora->adapter.value_or("") : checkpoint.string();
    if (from.empty())
      models::attach_new_adapter(decoder, student_adapter(context.recipe),
                                 static_cast<uint64_t>(context.recipe.seed));
    else
      models::attach_adapter(decoder, from);
  }
  decoder.set_gradient_checkpointing(context.recipe.train.gradient_checkpointing,
                                     context.recipe.train.gradient_checkpointing_every);
  return decoder;
}

// Into the log, and to whoever watches the run.
void warn(const RankContext& context, int64_t step, const std::string& message) {
  RETORT_LOG(kWarning) << message;
  context.warn("training", step, message);
}

// Of the ranks that stop early, only the one that got a signal knows of it.
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

// The user's program for checkpoints, on the first rank of those that write them; null: none.
std::unique_ptr<CheckpointCommand> checkpoint_command(const TrainOptions& train,
                                                      parallel::World& world) {
  // A vote: a program that is not there ends all ranks at the start.
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

// The others wait in a vote for a rank that does not see the checkpoint yet.
std::filesystem::path resume_point(const RankContext& context, parallel::World& world) {
  if (!context.resume) return {};
  const Duration patience = std::min(kLateFolder, context.recipe.launch.collective_timeout / 2);
  return agree_on_checkpoint(
      world, context.run_folder, patience,
      [&](int64_t step, const std::string& what) { context.warn("loading", step, what); });
}

// That of the rows which were found bad beside training, to be thrown when what the run has to do
// for its checkpoint is done; null: there are none.
std::exception_ptr refusal_of(RowLook& look) {
  try {
    look.refuse_if_bad();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return std::current_exception();
  }
  return nullptr;
}

// What leaves its usual range is told in the log, and to whoever watches the run.
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

// Of the rank that took most.
void add_device_memory(MetricsRow& row, parallel::World& world) {
  if (world.device().is_cpu()) return;
  const int64_t peak = world.all().all_reduce(world.peak_device_bytes(), parallel::ReduceOp::kMax);
  row.add("peak_device_memory", static_cast<double>(peak));
}

}  // namespace

TrainLoopResult run_student(const RankContext& context) {
  const Recipe& recipe = context.recipe;
  const RoleOptions& role = context.role_options();
  keep_freed_memory();
  parallel::World world(student_world_options(context));

  const auto command = checkpoint_command(recipe.train, world);
  CheckpointStore::Options saving = checkpoint_options(recipe.train);
  if (const auto own = own_template(recipe)) saving.chat_template = own->text;
  CheckpointStore checkpoints(context.run_folder, role.model, std::move(saving),
                              hooks_of(command.get(), context));
  const std::filesystem::path checkpoint = resume_point(context, world);
  RowLook look(context, world);
  models::Decoder decoder =
      read_checkpoint(checkpoint, [&] { return load_student(context, world, checkpoint); });

  // The recipe's rows, and where its loop begins.
  const std::string day = template_day(context, checkpoint, world);
  rpc::Agent agent(agent_options(context, world.device()));
  rpc::PeerLinks links(agent, {.find = [&context](const std::string& peer, Deadline deadline) {
                         return find_peer(context, peer, deadline);
                       }});
  RunContext run{.rank = context,
                 .world = world,
                 .tokenizer = models::Tokenizer::load(role.model),
                 .chat = load_chat(recipe, day),
                 .vocab_rows = decoder.config().vocab_size,
                 .agent = agent,
                 .links = links};
  const Deadline first_step = Deadline::after(RowLook::kMostWait + RowDigest::kLeastWait);
  look.wait_before_training();
  std::unique_ptr<RecipeRun> work = recipe_type(recipe).make_run(run);
  if (const auto warning =
          unheard_end(recipe, run.chat, run.tokenizer, work->rows().has_messages());
      warning && context.rank == 0) {
    RETORT_LOG(kWarning) << *warning;
  }
  // Behind `work`, whose rows it reads.
  auto digest = std::make_unique<RowDigest>(work->rows(), world);
  if (checkpoint.empty()) {
    digest->wait_before_training(std::max(first_step.remaining(), RowDigest::kLeastWait));
  } else {
    digest->finish();
    check_resumed_rows(context, checkpoint, *work, world);
  }
  const LoopState start = starting_state(context, checkpoint, day, role.world);
  const int64_t max_steps = total_steps(recipe.train, [&] { return work->steps_per_epoch(); });

  roles::Trainer::Options training = trainer_options(recipe.train, max_steps);
  training.lora_dropout = role.lora ? role.lora->lora_dropout : 0;
  training.dropout_seed = start.seed;
  roles::Trainer trainer(std::move(decoder), world, std::move(training));
  if (!checkpoint.empty())
    read_checkpoint(checkpoint, [&] { trainer.load_state(checkpoint / "state"); });
  check_same_start(world, start.step);
  check_replicas_agree(trainer.decoder(), world, "at the start");
  // A vote, because only some ranks wait for other roles.
  parallel::run_on_all(world.all(), [&] { work->start(trainer, start); });

  std::unique_ptr<ToldMetrics> metrics;
  if (world.rank() == 0) metrics = std::make_unique<ToldMetrics>(context);
  context.report("training", start.step, "of " + std::to_string(max_steps) + " steps");
  set_log_step(start.step + 1);
  const auto begin = std::chrono::steady_clock::now();
  const auto time_is_up = [&] {
    return recipe.train.max_time &&
           std::chrono::steady_clock::now() - begin >= *recipe.train.max_time;
  };
  int64_t done_step = start.step;
  RpcMetrics calls(agent);
  Spikes spikes(context);
  RowTroubles troubles(work->rows(), trainer.decoder().config().max_position_embeddings,
                       [&](int64_t step, const std::string& what) { warn(context, step, what); });
  const bool makes_calls = !serving_roles(recipe).empty();
  const TrainLoopResult result = run_train_loop(
      {.trainer = trainer,
       .world = world,
       .objective = work->objective(),
       .evaluator = work->evaluator(),
       .checkpoints = checkpoints},
      start, loop_options(recipe.train, max_steps),
      {.stop_requested =
           [&] { return context.stop_requested() || time_is_up() || look.must_end(done_step); },
       .add_metrics =
           [&](MetricsRow& row) {
             if (makes_calls) calls.add_to(row, world.all());
             add_device_memory(row, world);
           },
       .on_metrics =
           [&](const MetricsRow& row) {
             metrics->write(row);
             troubles.see_first(row.step);
             spikes.see(row);
           },
       .on_divergence = [&](int64_t step, const std::string& what) { warn(context, step, what); },
       .on_save_error = [&](int64_t step, const std::string& what) { warn(context, step, what); },
       .on_step =
           [&](int64_t step) {
             digest->after_step();
             done_step = step;
             context.report("training", step, "");
             tell_of(command.get(), context, step);
             set_log_step(step + 1);
           },
       .complete_state = [&](LoopState& state) { digest->complete(state); },
       .on_save =
           [&](int64_t step) {
             // A checkpoint of replicas that differ would be of none of them.
             check_replicas_agree(trainer.decoder(), world, "at step " + std::to_string(step));
             context.report("saving", step, "");
           },
       .on_saved =
           [&](int64_t step) {
             context.report("training", step, "");
             if (metrics) metrics->flush(step);
           }});
  if (metrics) metrics->flush(result.step);

  std::exception_ptr bad_rows;
  if (result.stopped_early) bad_rows = refusal_of(look);
  look.end();
  if (world.rank() == 0) troubles.tell(result.step);
  if (work->rows().num_skipped() > 0) {
    RETORT_LOG(kWarning) << work->rows().num_skipped()
                         << " bad samples were skipped (data.on_bad_sample: skip)";
  }
  digest.reset();
  work.reset();
  agent.close();
  agent.join();
  if (command) {
    if (!command->in_use().empty())
      context.report("saving", result.step, "waits for train.checkpoint_command");
    command->finish();
    tell_of(command.get(), context, result.step);
  }
  // Another rank that fails would end the one whose program still has the checkpoint.
  const bool another_tells = !recipe.train.checkpoint_command.empty() && !command;
  if (bad_rows && !another_tells) std::rethrow_exception(bad_rows);
  report_end(context, result);
  return result;
}

}  // namespace retort::recipes
