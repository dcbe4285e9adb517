// The roles of an external engine: a process of ours that speaks for it.
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "engines/backend.h"
#include "engines/engine.h"
#include "engines/teacher.h"
#include "launch/backends/child_process.h"
#include "launch/ranks/engine_process.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "models/checkpoint.h"
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
// of log-probabilities in fp32, by another program
constexpr double kDefaultTolerance = 1e-3;

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

 private:
  fs::path log() const {
    return context_.run_folder / "logs" /
           (context_.role + "-engine-" + std::to_string(context_.rank) + ".log");
  }

  engines::EngineState wait(Deadline deadline) {
    context_.report("loading", 0, "waiting for " + url_);
    for (;;) {
      check();
      if (context_.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped while it waited");
      std::string why;
      try {
        const auto look = std::min<Duration>(kOneLook, deadline.remaining());
        return engine_->state(Deadline::after(look)).get();
      } catch (const Error& error) {
        const bool may_come =
            error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout;
        if (!may_come) throw;
        why = error.message();
      }
      if (deadline.expired())
        throw Error(ErrorCode::kTimeout, "no engine after " +
                                             format_duration(options_.load_timeout) +
                                             " (external.load_timeout): " + why);
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

void log_engine(const RankContext& context, const engines::EngineState& state) {
  const engines::ExternalOptions& options = *context.role_options().external;
  RETORT_LOG(kInfo) << enum_name(options.engine) << " " << state.version << " serves "
                    << state.served_model;
}

}  // namespace

void run_engine_teacher_role(const RankContext& context) {
  const auto& external = *context.role_options().external;
  Attached attached(context);
  const engines::EngineState state = attached.start(Deadline::after(external.load_timeout));
  log_engine(context, state);
  engines::EngineTeacher teacher(
      attached.engine(), models::Tokenizer::load(external.tokenizer),
      {.name = context.name(),
       .timeout = external.timeout,
       .config = config_of(context, state),
       .folder = external.tokenizer,
       .store = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)}});

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, at::kCPU));
  teacher.serve(agent, queue);
  publish_address(context, agent.address());

  context.report("serving", 0, "");
  const auto tick = [&](int64_t) {
    attached.check();
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

  // The student as it begins; its weights follow before the first sample. An engine that is started
  // here begins with these.
  context.report("loading", 0, student.model);
  models::Decoder decoder = models::load_decoder(
      student.model, models::parse_dtype(std::string(enum_name(student.dtype))));
  engines::WeightFiles files(external.weights, external.served_model, student.model);
  Attached attached(context);
  if (attached.starts_it()) files.write(decoder, 0);
  const engines::EngineState state = attached.start(Deadline::after(external.load_timeout));
  log_engine(context, state);
  config_of(context, state);

  const fs::path receipts = context.run_folder / "receipts.jsonl";
  const OwnedFd receipts_fd(recipes::open_for_append(receipts));
  engines::EngineBackend::Options options{
      .timeout = external.timeout,
      .load_timeout = external.load_timeout,
      .canaries = {.tokens = external.weights.canary_tokens,
                   .tolerance = external.tolerance.value_or(kDefaultTolerance)},
      .on_receipt = [&](const engines::Receipt& receipt) {
        recipes::append_bytes(receipts_fd.get(), engines::to_json(receipt, context.name()) + "\n",
                              receipts);
      }};
  // llama.cpp opens a file when it starts.
  if (attached.starts_it() && external.weights.via == engines::WeightRoute::kGguf)
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
