// The roles of an external engine: a process of ours that speaks for it.
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/log.h"
#include "engines/backend.h"
#include "engines/judge.h"
#include "engines/model_watch.h"
#include "engines/reward.h"
#include "engines/teacher.h"
#include "launch/ranks/attached_engine.h"
#include "launch/ranks/engine_contract.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "models/checkpoint.h"
#include "recipes/external_roles.h"
#include "recipes/run/agent_options.h"
#include "recipes/run/patient_files.h"
#include "roles/generator/server.h"
#include "roles/serving_loop.h"

namespace retort::launch {

using recipes::RankContext;

namespace {
namespace fs = std::filesystem;

// llama.cpp opens a file when it starts; a router (no command) does it again when told to.
bool restarts_to_load(const AttachedEngine& attached, const engines::ExternalOptions& external) {
  return attached.starts_it() && external.weights.via == engines::WeightRoute::kGguf;
}

// Replicas write at times of their own: each has a folder.
engines::EngineWeightOptions weights_of(const RankContext& context) {
  const engines::ExternalOptions& external = *context.role_options().external;
  engines::EngineWeightOptions weights = external.weights;
  if (external.url.size() > 1)
    weights.folder = fs::path(weights.folder) / std::to_string(context.rank);
  return weights;
}

// What other replicas must give, too.
roles::ProbeNumbers numbers_of(const engines::FirstNumbers& first, engines::Allowed allowed) {
  return {.values = first.given, .largest = allowed.largest, .mean = allowed.mean};
}

// How far a role has got, for whoever watches the run.
template <class Role>
struct Progress {
  int64_t (Role::*count)() const;
  const char* unit;
};

// Answers for `role` until the run stops, and looks whether the engine is still the one it was.
template <class Role>
void serve(const RankContext& context, AttachedEngine& attached, engines::ModelWatch& watch,
           Role& role, Progress<Role> progress) {
  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, at::kCPU));
  role.serve(agent, queue);
  publish_address(context, agent.address());

  context.report("serving", 0, "");
  const auto tick = [&](int64_t) {
    attached.check();
    attached.look(watch);
    context.report("serving", (role.*progress.count)(), progress.unit);
  };
  roles::run_serving_loop(*queue, context.stop_requested, tick, [&] { return role.work(); });
  role.stop();
  end_serving(*queue, agent);
  context.report("done", (role.*progress.count)(), progress.unit);
}

}  // namespace

void run_engine_teacher_role(const RankContext& context) {
  const auto& external = *context.role_options().external;
  AttachedEngine attached(context);
  const Deadline deadline = Deadline::after(external.load_timeout);
  const models::ModelConfig config = attached.config(attached.start(deadline));
  engines::Contract contract;
  {
    const std::optional<models::Decoder> local = local_copy(external.tokenizer);
    contract = attached.probe(local ? &*local : nullptr, deadline);
  }
  engines::ModelWatch watch(attached.engine(),
                            {.vocab_rows = config.vocab_size,
                             .tolerance = contract.tolerance,
                             .timeout = std::chrono::milliseconds(external.timeout)});
  const engines::FirstNumbers first = attached.begin(watch, deadline);
  engines::EngineTeacher teacher(
      attached.engine(), models::Tokenizer::load(external.tokenizer),
      {.name = context.name(),
       .timeout = external.timeout,
       .config = config,
       .folder = external.tokenizer,
       .store = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)},
       .numbers = numbers_of(first, engines::allowed_of_replicas(contract))});

  serve(context, attached, watch, teacher,
        {&engines::EngineTeacher::requests_served, "requests answered"});
}

void run_engine_reward_role(const RankContext& context) {
  const auto& external = *context.role_options().external;
  AttachedEngine attached(context);
  const Deadline deadline = Deadline::after(external.load_timeout);
  const models::ModelConfig config = attached.config(attached.start(deadline));
  // Rewards cannot be compared with a decoder's numbers.
  const engines::Contract contract = attached.probe(/*local=*/nullptr, deadline);
  engines::ModelWatch watch(attached.engine(),
                            {.asks = engines::ModelWatch::Asks::kReward,
                             .vocab_rows = config.vocab_size,
                             .label = recipes::engine_needs(context.recipe, context.role).label,
                             .tolerance = engines::reward_tolerance(contract),
                             .timeout = std::chrono::milliseconds(external.timeout)});
  const engines::FirstNumbers first = attached.begin(watch, deadline);
  const double reward_of_watch = first.given.empty() ? 0 : first.given[0];
  engines::EngineReward reward(
      attached.engine(), models::Tokenizer::load(external.tokenizer),
      {.name = context.name(),
       .timeout = external.timeout,
       .config = config,
       .numbers = numbers_of(first, engines::allowed_of_replicas(contract, reward_of_watch))});

  serve(context, attached, watch, reward,
        {&engines::EngineReward::completions_scored, "completions scored"});
}

void run_engine_judge_role(const RankContext& context) {
  const auto& external = *context.role_options().external;
  AttachedEngine attached(context);
  const Deadline deadline = Deadline::after(external.load_timeout);
  const engines::EngineState state = attached.start(deadline);
  const engines::Contract contract = attached.probe(/*local=*/nullptr, deadline);
  // Words that change by themselves, or are none, show nothing of who writes them.
  const bool steady = contract.words_repeat.value_or(false) &&
                      contract.words_in_batch.value_or(false) && !contract.written.empty();
  if (contract.written.empty()) {
    RETORT_LOG(kWarning) << "the judge says nothing within "
                         << engines::ModelWatch::words_question().max_new_tokens
                         << " tokens, so that another model under its address would be seen by its "
                            "name alone; if it thinks first, rewards[].max_new_tokens needs room";
  } else if (!steady) {
    RETORT_LOG(kWarning) << "the judge answers the same question in other words at temperature 0; "
                            "its scores are partly chance, and another model under its address "
                            "would be seen by its name alone";
  }
  using Asks = engines::ModelWatch::Asks;
  engines::ModelWatch watch(attached.engine(),
                            {.asks = steady ? Asks::kWords : Asks::kNothing,
                             .timeout = std::chrono::milliseconds(external.timeout)});
  attached.begin(watch, deadline);
  engines::EngineJudge judge(
      attached.engine(), {.name = context.name(),
                          .timeout = external.timeout,
                          .served_model = state.served_model + " (" + contract.answered_by + ")"});
  serve(context, attached, watch, judge,
        {&engines::EngineJudge::texts_answered, "completions judged"});
}

void run_engine_generator_role(const RankContext& context) {
  const auto& external = *context.role_options().external;
  const recipes::RoleOptions& student = context.recipe.student();

  // The engine begins as the student does, so that its numbers can be compared; what is trained
  // follows before the first sample.
  context.report("loading", 0, student.model);
  models::Decoder decoder = models::load_decoder(
      student.model, models::parse_dtype(std::string(enum_name(student.dtype))));
  engines::WeightFiles files(weights_of(context), external.served_model, student.model);
  AttachedEngine attached(context);
  const Deadline deadline = Deadline::after(external.load_timeout);
  const std::string first = files.write(decoder, 0);
  attached.config(attached.start(deadline));
  if (!restarts_to_load(attached, external)) attached.engine()->load_weights(first, deadline).get();
  const engines::Contract contract = attached.probe(&decoder, deadline);
  const engines::Allowed allowed = engines::allowed_of_weights(contract);

  recipes::PatientFile receipts(context.run_folder / "receipts.jsonl");
  engines::EngineBackend::Options options{
      .timeout = external.timeout,
      .load_timeout = external.load_timeout,
      .canaries = {.tokens = external.weights.canary_tokens,
                   .tolerance = allowed.largest,
                   .mean_tolerance = allowed.mean,
                   .nonce = new_nonce()},
      .drawn = contract.drawn,
      .on_receipt = [&](const engines::Receipt& receipt) {
        const int64_t before = receipts.num_waiting();
        receipts.append(engines::to_json(receipt, context.name()) + "\n");
        if (before > 0 || receipts.num_waiting() == 0) return;
        RETORT_LOG(kWarning) << "the disk is full: receipts wait for " << receipts.path().string();
      }};
  if (restarts_to_load(attached, external))
    options.load = [&](const std::string&, Deadline deadline) { attached.start(deadline); };
  auto backend = std::make_unique<engines::EngineBackend>(
      attached.engine(), std::move(decoder), models::Tokenizer::load(external.tokenizer),
      std::move(files), std::move(options));
  roles::Generator generator(context.name(), std::move(backend));

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, at::kCPU));
  generator.serve(agent, queue);
  publish_address(context, agent.address());

  context.report("serving", 0, "");
  generator.lead(*queue, context.stop_requested, [&](int64_t) {
    attached.check();
    context.report("serving", generator.tokens_drawn(),
                   "tokens drawn, weights " + std::to_string(generator.weight_version()));
  });
  end_serving(*queue, agent);
  context.report("done", generator.tokens_drawn(), "tokens drawn");
}

}  // namespace retort::launch
