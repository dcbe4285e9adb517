// The roles of an external engine: a process of ours that speaks for it.
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "engines/served/backend.h"
#include "engines/served/judge.h"
#include "engines/served/reward.h"
#include "engines/served/teacher.h"
#include "engines/weights/model_watch.h"
#include "launch/ranks/attached_engine.h"
#include "launch/ranks/engine_contract.h"
#include "launch/ranks/episodes.h"
#include "launch/ranks/serving_roles.h"
#include "models/checkpoint/checkpoint.h"
#include "recipes/roles/external_roles.h"
#include "recipes/run/metrics/patient_files.h"
#include "roles/generator/server.h"

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

// The numbers that other replicas must give, too.
roles::ProbeNumbers numbers_of(const engines::FirstNumbers& first, engines::Allowed allowed) {
  return {.values = first.given, .largest = allowed.largest, .mean = allowed.mean};
}

// Each receipt is a line of the run's receipts.jsonl.
std::function<void(const engines::Receipt&)> append_receipts(const RankContext& context) {
  auto file = std::make_shared<recipes::PatientFile>(context.run_folder / "receipts.jsonl");
  return [file, name = context.name()](const engines::Receipt& receipt) {
    const int64_t before = file->num_waiting();
    file->append(engines::to_json(receipt, name) + "\n");
    if (before > 0 || file->num_waiting() == 0) return;
    RETORT_LOG(kWarning) << "the disk is full: receipts wait for " << file->path().string();
  };
}

// The rank looks from then on whether its engine is still the one that it is now.
engines::FirstNumbers begin_watch(ServingRank& rank, engines::ModelWatch::Options options,
                                  Deadline deadline) {
  rank.watch = std::make_unique<engines::ModelWatch>(rank.engine->engine(), std::move(options));
  return rank.engine->begin(*rank.watch, deadline);
}

}  // namespace

ServingRank make_engine_teacher(const RankContext& context) {
  const auto& external = *context.role_options().external;
  ServingRank rank{.engine = std::make_unique<AttachedEngine>(context)};
  AttachedEngine& attached = *rank.engine;
  const Deadline deadline = Deadline::after(external.load_timeout);
  const models::ModelConfig config = attached.config(attached.start(deadline));
  engines::Contract contract;
  {
    // The copy is for the probe alone, and its memory is given back before the role serves.
    const std::optional<models::Decoder> local = local_copy(external.tokenizer);
    contract = attached.probe(local ? &*local : nullptr, deadline);
  }

  const engines::FirstNumbers first =
      begin_watch(rank,
                  {.vocab_rows = config.vocab_size,
                   .tolerance = contract.tolerance,
                   .timeout = std::chrono::milliseconds(external.timeout)},
                  deadline);
  rank.role = std::make_unique<engines::EngineTeacher>(
      attached.engine(), models::Tokenizer::load(external.tokenizer),
      engines::EngineTeacher::Options{
          .name = context.name(),
          .timeout = external.timeout,
          .config = config,
          .folder = external.tokenizer,
          .store = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)},
          .numbers = numbers_of(first, engines::allowed_of_replicas(contract))});
  return rank;
}

ServingRank make_engine_reward(const RankContext& context) {
  const auto& external = *context.role_options().external;
  ServingRank rank{.engine = std::make_unique<AttachedEngine>(context)};
  AttachedEngine& attached = *rank.engine;
  const Deadline deadline = Deadline::after(external.load_timeout);
  const models::ModelConfig config = attached.config(attached.start(deadline));
  // Rewards cannot be compared with a decoder's numbers.
  const engines::Contract contract = attached.probe(/*local=*/nullptr, deadline);

  const engines::FirstNumbers first =
      begin_watch(rank,
                  {.asks = engines::ModelWatch::Asks::kReward,
                   .vocab_rows = config.vocab_size,
                   .label = recipes::engine_needs(context.recipe, context.role).label,
                   .tolerance = engines::reward_tolerance(contract),
                   .timeout = std::chrono::milliseconds(external.timeout)},
                  deadline);
  const double reward_of_watch = first.given.empty() ? 0 : first.given[0];
  rank.role = std::make_unique<engines::EngineReward>(
      attached.engine(), models::Tokenizer::load(external.tokenizer),
      engines::EngineReward::Options{
          .name = context.name(),
          .timeout = external.timeout,
          .config = config,
          .numbers = numbers_of(first, engines::allowed_of_replicas(contract, reward_of_watch))});
  return rank;
}

ServingRank make_engine_judge(const RankContext& context) {
  const auto& external = *context.role_options().external;
  ServingRank rank{.engine = std::make_unique<AttachedEngine>(context)};
  AttachedEngine& attached = *rank.engine;
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
  begin_watch(rank,
              {.asks = steady ? Asks::kWords : Asks::kNothing,
               .timeout = std::chrono::milliseconds(external.timeout)},
              deadline);
  rank.role = std::make_unique<engines::EngineJudge>(
      attached.engine(), engines::EngineJudge::Options{.name = context.name(),
                                                       .timeout = external.timeout,
                                                       .served_model = state.served_model + " (" +
                                                                       contract.answered_by + ")"});
  return rank;
}

ServingRank make_engine_generator(const RankContext& context) {
  const auto& external = *context.role_options().external;
  const recipes::RoleOptions& student = context.recipe.student();

  // The engine begins as the student does, so that its numbers can be compared; what is trained
  // follows before the first sample.
  context.report("loading", 0, student.model);
  models::Decoder decoder = models::load_decoder(
      student.model, models::parse_dtype(std::string(enum_name(student.dtype))));
  engines::WeightFiles files(weights_of(context), external.served_model, student.model);
  ServingRank rank{.engine = std::make_unique<AttachedEngine>(context)};
  AttachedEngine& attached = *rank.engine;
  const Deadline deadline = Deadline::after(external.load_timeout);
  const std::string first = files.write(decoder, 0);
  attached.config(attached.start(deadline));
  if (!restarts_to_load(attached, external)) attached.engine()->load_weights(first, deadline).get();
  const engines::Contract contract = attached.probe(&decoder, deadline);
  const engines::Allowed allowed = engines::allowed_of_weights(contract);

  engines::EngineBackend::Options options{.timeout = external.timeout,
                                          .load_timeout = external.load_timeout,
                                          .canaries = {.tokens = external.weights.canary_tokens,
                                                       .tolerance = allowed.largest,
                                                       .mean_tolerance = allowed.mean,
                                                       .nonce = new_nonce()},
                                          .drawn = contract.drawn,
                                          .on_receipt = append_receipts(context)};
  if (restarts_to_load(attached, external))
    options.load = [&attached](const std::string&, Deadline deadline) { attached.start(deadline); };
  const models::Tokenizer tokenizer = models::Tokenizer::load(external.tokenizer);
  auto backend = std::make_unique<engines::EngineBackend>(
      attached.engine(), std::move(decoder), tokenizer, std::move(files), std::move(options));
  // No watch: its receipts prove that its weights are the student's.
  rank.role = std::make_unique<roles::Generator>(
      context.name(), with_episodes(context, rank, tokenizer, std::move(backend)));
  return rank;
}

}  // namespace retort::launch
