// The roles of an external engine: a process of ours that speaks for it.
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "engines/backend.h"
#include "engines/engine.h"
#include "engines/model_watch.h"
#include "engines/teacher.h"
#include "launch/backends/child_process.h"
#include "launch/ranks/engine_contract.h"
#include "launch/ranks/engine_process.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "models/checkpoint.h"
#include "recipes/external_roles.h"
#include "recipes/run/agent_options.h"
#include "recipes/run/append_fd.h"
#include "roles/generator/server.h"
#include "roles/serving_loop.h"

namespace retort::launch {

using recipes::RankContext;

namespace {
namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kLookEvery = 200ms;
constexpr auto kOneLook = 10s;
constexpr int kMostLosses = 2;  // of the engine while it is probed

// The engine of this rank, and its process if the role has a command for it.
class Attached {
 public:
  explicit Attached(const RankContext& context)
      : context_(context),
        options_(*context.role_options().external),
        url_(options_.url.at(static_cast<size_t>(context.rank))),
        engine_(engines::make_engine(options_, url_, engines::read_api_key(options_))) {}

  // Starts the engine, anew if it runs, and waits until it serves the model.
  engines::EngineState start(Deadline deadline) {
    if (starts_it()) {
      process_.reset();
      process_ = std::make_unique<EngineProcess>(options_.command, log());
    }
    return wait(deadline);
  }

  // kUnavailable if the engine was started here and has ended.
  void check() {
    if (process_) process_->check_running();
  }
  bool starts_it() const { return !options_.command.empty(); }
  const std::shared_ptr<engines::Engine>& engine() const { return engine_; }

  // Asks what the engine's answers mean, keeps it in the run's folder, and refuses what the role
  // cannot use. `local`: what it serves, or null.
  engines::Contract probe(const models::Decoder* local, Deadline deadline) {
    const engines::Needs needs = recipes::engine_needs(context_.recipe, context_.role);
    context_.report("loading", 0, "asking " + url_ + " what its answers mean");
    const engines::Contract contract = asked(local, needs.sampling, deadline);
    write_file_atomically(found(".json"), engines::to_json(contract));
    engines::check_contract(contract, needs);
    return contract;
  }

  // A file of what was found out about this replica's engine.
  fs::path found(const std::string& ending) const {
    const fs::path folder = context_.run_folder / "contracts";
    fs::create_directories(folder);
    const std::string replica =
        options_.url.size() > 1 ? "-" + std::to_string(context_.rank) : std::string();
    return folder / (context_.role + replica + ending);
  }

 private:
  // An engine that is lost on the way is waited for and asked anew; one that never gets through is
  // not there: its own error.
  engines::Contract asked(const models::Decoder* local, const models::SamplingOptions& sampling,
                          Deadline deadline) {
    for (int losses = 0;; ++losses) {
      try {
        return probe_engine(*engine_, options_, url_, local, sampling, deadline);
      } catch (const Error& error) {
        if (!engines::is_absent(error) || losses == kMostLosses || deadline.expired()) throw;
        RETORT_LOG(kWarning) << "lost while it was asked what its answers mean: " << error.what();
      }
      wait(deadline);
    }
  }

  fs::path log() const {
    return context_.run_folder / "logs" /
           (context_.role + "-engine-" + std::to_string(context_.rank) + ".log");
  }

  engines::EngineState wait(Deadline deadline) {
    context_.report("loading", 0, "waiting for " + url_);
    std::string said;
    for (;;) {
      check();
      if (context_.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped while it waited");
      std::string why;
      try {
        const auto look = std::min<Duration>(kOneLook, deadline.remaining());
        return engine_->state(Deadline::after(look)).get();
      } catch (const Error& error) {
        if (!engines::is_absent(error)) throw;
        why = error.message();
      }
      if (deadline.expired())
        throw Error(ErrorCode::kTimeout, "no engine after " +
                                             format_duration(options_.load_timeout) +
                                             " (external.load_timeout): " + why);
      // Whether it is not there yet or the address is wrong only who reads this can tell.
      if (why != said) {
        said = why;
        RETORT_LOG(kWarning) << "waiting for " << url_ << ": " << why;
        context_.report("loading", 0, "waiting for " + url_ + ": " + why);
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  const RankContext& context_;
  const engines::ExternalOptions& options_;
  const std::string url_;
  std::unique_ptr<EngineProcess> process_;
  std::shared_ptr<engines::Engine> engine_;
};

// Of the folder of the tokenizer; the engine's own numbers must fit it.
models::ModelConfig config_of(const RankContext& context, const engines::EngineState& state) {
  const models::ModelConfig config = models::read_model_config(context.role_options().model);
  if (state.vocab_rows > 0 && state.vocab_rows != config.vocab_size)
    throw Error(ErrorCode::kMismatch, "the engine serves a model with " +
                                          std::to_string(state.vocab_rows) +
                                          " ids, external.tokenizer has a config.json with " +
                                          std::to_string(config.vocab_size) + ": another model")
        .with("served", state.served_model);
  return config;
}

// llama.cpp opens a file when it starts; a router (no command) does it again when told to.
bool restarts_to_load(const Attached& attached, const engines::ExternalOptions& external) {
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

// Where it stops the run, and is not tried again: the same model would answer.
template <class Fn>
void refusing_another_model(const std::string& url, Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    throw Error(ErrorCode::kInvalidArgument, error.message(), error.origin(), error.context())
        .with("url", url);
  }
}

// A process that was started again must find the model that the first one found: an engine that
// was away may come back with another.
void begin_watch(engines::ModelWatch& watch, const fs::path& file, bool again, Deadline deadline) {
  std::optional<engines::FirstNumbers> earlier;
  if (again && fs::exists(file)) earlier = engines::read_first_numbers(read_file(file));
  const engines::FirstNumbers first = watch.begin(earlier, deadline);
  if (!earlier) write_file_atomically(file, engines::to_json(first));
}

void log_engine(const RankContext& context, const engines::EngineState& state) {
  const engines::ExternalOptions& options = *context.role_options().external;
  RETORT_LOG(kInfo) << enum_name(options.engine) << " " << state.version << " serves "
                    << state.served_model;
}

}  // namespace

void run_engine_teacher_role(const RankContext& context) {
  const auto& external = *context.role_options().external;
  Attached attached(context);
  const Deadline deadline = Deadline::after(external.load_timeout);
  const engines::EngineState state = attached.start(deadline);
  log_engine(context, state);
  const models::ModelConfig config = config_of(context, state);
  engines::Contract contract;
  {
    const std::optional<models::Decoder> local = local_copy(external.tokenizer);
    contract = attached.probe(local ? &*local : nullptr, deadline);
  }
  engines::ModelWatch watch(attached.engine(),
                            {.vocab_rows = config.vocab_size,
                             .tolerance = contract.tolerance,
                             .timeout = std::chrono::milliseconds(external.timeout)});
  refusing_another_model(contract.url, [&] {
    begin_watch(watch, attached.found(".first.json"), context.restart > 0, deadline);
  });
  engines::EngineTeacher teacher(
      attached.engine(), models::Tokenizer::load(external.tokenizer),
      {.name = context.name(),
       .timeout = external.timeout,
       .config = config,
       .folder = external.tokenizer,
       .store = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)}});

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, at::kCPU));
  teacher.serve(agent, queue);
  publish_address(context, agent.address());

  context.report("serving", 0, "");
  const auto tick = [&](int64_t) {
    attached.check();
    refusing_another_model(contract.url, [&] { watch.look(); });
    context.report("serving", teacher.requests_served(), "requests answered");
  };
  roles::run_serving_loop(*queue, context.stop_requested, tick, [&] { return teacher.work(); });
  teacher.stop();
  end_serving(*queue, agent);
  context.report("done", teacher.requests_served(), "requests answered");
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
  Attached attached(context);
  const Deadline deadline = Deadline::after(external.load_timeout);
  const std::string first = files.write(decoder, 0);
  const engines::EngineState state = attached.start(deadline);
  log_engine(context, state);
  config_of(context, state);
  if (!restarts_to_load(attached, external)) attached.engine()->load_weights(first, deadline).get();
  const engines::Contract contract = attached.probe(&decoder, deadline);

  const fs::path receipts = context.run_folder / "receipts.jsonl";
  const OwnedFd receipts_fd(recipes::open_for_append(receipts));
  engines::EngineBackend::Options options{
      .timeout = external.timeout,
      .load_timeout = external.load_timeout,
      .canaries = {.tokens = external.weights.canary_tokens,
                   .tolerance = contract.tolerance,
                   .nonce = new_nonce()},
      .drawn = contract.drawn,
      .on_receipt = [&](const engines::Receipt& receipt) {
        recipes::append_bytes(receipts_fd.get(), engines::to_json(receipt, context.name()) + "\n",
                              receipts);
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
