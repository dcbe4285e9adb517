#include <ATen/Context.h>

#include <cmath>

#include "base/log.h"
#include "launch/role_process.h"
#include "models/checkpoint.h"
#include "recipes/checkpoint.h"
#include "recipes/checkpoints.h"
#include "recipes/distill.h"
#include "recipes/evaluate.h"
#include "recipes/metrics_writer.h"
#include "recipes/sft.h"
#include "roles/trainer.h"

namespace retort::launch {
namespace {

struct StudentData {
  models::Tokenizer tokenizer;
  std::shared_ptr<data::Dataset> train;
  std::vector<data::MicroBatch> eval;
  data::BatchOptions batches;
};

StudentData open_data(const RoleContext& context, const std::string& model, const parallel::World& world) {
  const Recipe& recipe = context.recipe;
  models::Tokenizer tokenizer = models::Tokenizer::load(model);
  const models::ChatTemplate chat = models::ChatTemplate::load(model);
  const auto cache = context.run_folder / "cache";
  StudentData result{.tokenizer = tokenizer};
  result.train = std::make_shared<data::Dataset>(recipe.data.train, recipe.data, tokenizer, chat, cache);
  const recipes::TrainOptions& train = recipe.train;
  result.batches = {.seed = static_cast<uint64_t>(recipe.seed),
                    .rows_per_micro_batch = train.per_device_train_batch_size.value_or(0),
                    .tokens_per_micro_batch = train.tokens_per_batch.value_or(0),
                    .micro_batches = train.gradient_accumulation_steps,
                    .max_length = recipe.data.max_length,
                    .packing = recipe.data.packing,
                    .shuffle = recipe.data.shuffle,
                    .dp_rank = world.coordinate().dp,
                    .dp_size = world.options().layout.dp};
  if (!recipe.data.eval.empty()) {
    const data::Dataset eval(recipe.data.eval, recipe.data, tokenizer, chat, cache);
    result.eval = data::eval_batches(eval, result.batches);
  }
  return result;
}

roles::Trainer::Options trainer_options(const recipes::TrainOptions& train, int64_t max_steps) {
  const int64_t warmup = train.warmup_ratio > 0
                             ? static_cast<int64_t>(std::ceil(train.warmup_ratio * static_cast<double>(max_steps)))
                             : train.warmup_steps;
  return {.adamw = {.beta1 = train.adam_beta1,
                    .beta2 = train.adam_beta2,
                    .eps = train.adam_epsilon,
                    .weight_decay = train.weight_decay,
                    .no_decay_suffixes = {}},
          .schedule = {.type = train.lr_scheduler_type,
                       .learning_rate = train.learning_rate,
                       .min_lr = train.min_lr,
                       .warmup_steps = warmup,
                       .max_steps = max_steps},
          .max_grad_norm = train.max_grad_norm};
}

// Connects to every replica of every teacher and shakes hands.
std::vector<recipes::TeacherRoute> connect_teachers(const RoleContext& context, rpc::Agent& agent,
                                                    const models::Tokenizer& tokenizer, int64_t vocab_rows) {
  const Recipe& recipe = context.recipe;
  std::vector<recipes::TeacherRoute> routes;
  for (const recipes::TeacherOptions& teacher : recipe.distill->teachers) {
    const Deadline deadline = Deadline::after(recipe.rpc.timeout);
    parallel::StoreClient store(context.store_host, context.store_port, context.store_prefix(teacher.role), recipe.rpc.timeout);
    const int64_t replicas = recipe.roles.at(teacher.role).world.world_size();
    std::vector<std::string> peers;
    for (int64_t i = 0; i < replicas; ++i) {
      const std::string peer = teacher.role + "/" + std::to_string(i);
      context.report("waiting", 0, "for " + peer);
      const std::string address = store.get("address/" + std::to_string(i), deadline);
      agent.connect(peer, address, deadline);
      peers.push_back(peer);
    }
    auto client = std::make_unique<roles::TeacherClient>(agent,
                                                         roles::TeacherClient::Options{.role = teacher.role,
                                                                                       .replicas = std::move(peers),
                                                                                       .spec = recipe.distill->payload_spec(),
                                                                                       .timeout = recipe.rpc.timeout,
                                                                                       .student_vocab_rows = vocab_rows},
                                                         tokenizer);
    routes.push_back({.client = std::move(client), .weight = teacher.weight, .when = teacher.when});
  }
  return routes;
}

recipes::LoopState starting_state(const RoleContext& context, const std::filesystem::path& checkpoint,
                                  const std::string& data_fingerprint, int64_t dp) {
  const uint64_t seed = static_cast<uint64_t>(context.recipe.seed);
  if (checkpoint.empty()) return {.seed = seed, .dp = dp, .threads = context.threads, .data_fingerprint = data_fingerprint};
  recipes::LoopState state = recipes::read_loop_state(checkpoint);
  if (state.seed != seed)
    throw Error(ErrorCode::kInvalidArgument,
                "the run was started with seed " + std::to_string(state.seed) + "; a resumed run must keep it");
  if (state.data_fingerprint != data_fingerprint)
    throw Error(ErrorCode::kInvalidArgument, "the training data, its columns or the tokenizer changed since " +
                                                 checkpoint.string() + "; restore them, or start a new run");
  if (state.dp != dp || state.threads != context.threads) {
    RETORT_LOG(kWarning) << "resuming with dp " << dp << " and " << context.threads << " threads a run that had dp " << state.dp
                         << " and " << state.threads << " threads: numbers will differ in their last bits";
  }
  state.dp = dp;
  state.threads = context.threads;
  return state;
}

}  // namespace

recipes::TrainLoopResult run_student_role(const RoleContext& context) {
  const Recipe& recipe = context.recipe;
  const RoleOptions& role = recipe.roles.at(context.role);
  parallel::World world({.role = context.role,
                         .layout = role.world,
                         .rank = context.rank,
                         .store_host = context.store_host,
                         .store_port = context.store_port,
                         .store_prefix = context.store_prefix(context.role) + "world/",
                         .timeout = recipe.launch.collective_timeout});
  const recipes::CheckpointStore checkpoints(context.run_folder, role.model, recipe.train.save_total_limit);
  std::filesystem::path checkpoint;
  if (context.resume)
    if (const auto latest = recipes::latest_checkpoint(context.run_folder)) checkpoint = latest->path;
  const std::string model = checkpoint.empty() ? role.model : checkpoint.string();
  context.report("loading", 0, model);
  models::Decoder decoder = models::load_decoder(model, models::parse_dtype(std::string(enum_name(role.dtype))));
  decoder.set_gradient_checkpointing(recipe.train.gradient_checkpointing);
  const int64_t vocab_rows = decoder.config().vocab_size;
  StudentData data = open_data(context, role.model, world);
  recipes::LoopState start = starting_state(context, checkpoint, data.train->fingerprint(), world.dp().size());
  data::BatchStream stream(data.train, data.batches, start.cursor);
  const int64_t max_steps = recipe.train.max_steps.value_or(
      recipe.train.num_train_epochs
          ? static_cast<int64_t>(std::ceil(*recipe.train.num_train_epochs * static_cast<double>(stream.steps_per_epoch())))
          : 0);
  roles::Trainer trainer(std::move(decoder), world, trainer_options(recipe.train, max_steps));
  if (!checkpoint.empty()) trainer.load_state(checkpoint / "state");

  std::unique_ptr<rpc::Agent> agent;
  std::unique_ptr<recipes::Objective> objective;
  if (recipe.recipe == RecipeKind::kDistill) {
    agent =
        std::make_unique<rpc::Agent>(rpc::Agent::Options{.name = context.name(), .secret = context.secret, .rpc = recipe.rpc});
    objective = std::make_unique<recipes::DistillObjective>(
        [&](int64_t) { return stream.next(); }, *agent, connect_teachers(context, *agent, data.tokenizer, vocab_rows),
        recipes::DistillObjective::Options{.divergence = recipe.distill->divergence(),
                                           .prefetch = recipe.distill->prefetch,
                                           .dp_rank = world.coordinate().dp,
                                           .dp_size = world.dp().size()});
  } else {
    objective = std::make_unique<recipes::SftObjective>([&](int64_t) { return stream.next(); });
  }
  recipes::Evaluator evaluator;
  if (!data.eval.empty())
    evaluator = [&](int64_t step) {
      return recipes::evaluation_row(step, recipes::evaluate(trainer.decoder(), data.eval, world.dp()));
    };
  std::unique_ptr<recipes::MetricsWriter> metrics;
  if (world.rank() == 0) metrics = std::make_unique<recipes::MetricsWriter>(context.run_folder);
  context.report("training", start.step, "of " + std::to_string(max_steps) + " steps");
  const recipes::TrainLoopResult result =
      recipes::run_train_loop(trainer, world, *objective, evaluator, checkpoints, start,
                              {.max_steps = max_steps,
                               .logging_steps = recipe.train.logging_steps,
                               .eval_steps = recipe.train.eval_steps,
                               .save_steps = recipe.train.save_steps},
                              {.stop_requested = context.stop_requested,
                               .on_metrics = [&](const recipes::MetricsRow& row) { metrics->write(row); },
                               .on_step = [&](int64_t step) { context.report("training", step, ""); }});
  if (data.train->num_skipped() > 0) {
    RETORT_LOG(kWarning) << data.train->num_skipped() << " bad samples were skipped (data.on_bad_sample: skip)";
  }
  objective.reset();
  if (agent) {
    agent->close();
    agent->join();
  }
  context.report("done", result.step, result.stopped_early ? "stopped, checkpoint saved" : "");
  return result;
}

}  // namespace retort::launch
