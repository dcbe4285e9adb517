#include "launch/ranks/attached_engine.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/printable.h"
#include "engines/make_engine.h"
#include "launch/ranks/engine_contract.h"
#include "models/checkpoint/checkpoint.h"
#include "recipes/roles/external_roles.h"

namespace retort::launch {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kLookEvery = 200ms;
constexpr auto kOneLook = 10s;
constexpr int kMostLosses = 2;  // of the engine while it is probed

}  // namespace

AttachedEngine::AttachedEngine(const recipes::RankContext& context)
    : context_(context),
      options_(*context.role_options().external),
      url_(options_.url.at(static_cast<size_t>(context.rank))),
      shown_url_(engines::shown_url(url_)),
      engine_(engines::make_engine(options_, url_, engines::read_api_key(options_))) {}

engines::EngineState AttachedEngine::start(Deadline deadline) {
  if (starts_it()) {
    process_.reset();
    process_ = std::make_unique<EngineProcess>(options_.command, log());
  }
  engines::EngineState state = wait(deadline);
  RETORT_LOG(kInfo) << enum_name(options_.engine) << " " << printable(state.version) << " serves "
                    << printable(state.served_model);
  return state;
}

void AttachedEngine::check() {
  if (process_) process_->check_running();
}

models::ModelConfig AttachedEngine::config(const engines::EngineState& state) const {
  const models::ModelConfig config = models::read_model_config(options_.tokenizer);
  if (state.vocab_rows > 0 && state.vocab_rows != config.vocab_size)
    throw Error(ErrorCode::kMismatch, "the engine serves a model with " +
                                          std::to_string(state.vocab_rows) +
                                          " ids, external.tokenizer has a config.json with " +
                                          std::to_string(config.vocab_size) + ": another model")
        .with("served", state.served_model)
        .with("url", shown_url_);
  return config;
}

engines::Contract AttachedEngine::probe(const models::Decoder* local, Deadline deadline) {
  const engines::Needs needs = recipes::engine_needs(context_.recipe, context_.role);
  context_.report("loading", 0, "asking " + shown_url_ + " what its answers mean");
  const engines::Contract contract = asked(local, needs, deadline);
  write_file_atomically(found(".json"), engines::to_json(contract));
  engines::check_contract(contract, needs);
  return contract;
}

// An engine that is lost on the way is waited for and asked anew; one that never gets through is
// not there: its own error.
engines::Contract AttachedEngine::asked(const models::Decoder* local, const engines::Needs& needs,
                                        Deadline deadline) {
  for (int losses = 0;; ++losses) {
    try {
      return probe_engine(*engine_, options_, url_, local, needs, deadline);
    } catch (const Error& error) {
      if (!engines::is_absent(error) || losses == kMostLosses || deadline.expired()) throw;
      RETORT_LOG(kWarning) << "lost while it was asked what its answers mean: " << error.what();
    }
    wait(deadline);
  }
}

engines::FirstNumbers AttachedEngine::begin(engines::ModelWatch& watch, Deadline deadline) {
  const fs::path file = found(".first.json");
  std::optional<engines::FirstNumbers> earlier;
  if (context_.restart > 0 && fs::exists(file))
    earlier = engines::read_first_numbers(read_file(file));
  engines::FirstNumbers first;
  with_url([&] { first = watch.begin(earlier, deadline); });
  if (!earlier) write_file_atomically(file, engines::to_json(first));
  return first;
}

void AttachedEngine::look(engines::ModelWatch& watch) {
  with_url([&] { watch.look(); });
}

fs::path AttachedEngine::found(const std::string& ending) const {
  const fs::path folder = context_.run_folder / "contracts";
  fs::create_directories(folder);
  const std::string replica =
      options_.url.size() > 1 ? "-" + std::to_string(context_.rank) : std::string();
  return folder / (context_.role + replica + ending);
}

fs::path AttachedEngine::log() const {
  return context_.run_folder / "logs" /
         (context_.role + "-engine-" + std::to_string(context_.rank) + ".log");
}

engines::EngineState AttachedEngine::wait(Deadline deadline) {
  context_.report("loading", 0, "waiting for " + shown_url_);
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
      throw Error(ErrorCode::kTimeout, "no engine after " + format_duration(options_.load_timeout) +
                                           " (external.load_timeout): " + why)
          .with("url", shown_url_);
    // Only who reads this can tell whether the engine is not there yet or the address is wrong.
    if (why != said) {
      said = why;
      RETORT_LOG(kWarning) << "waiting for " << shown_url_ << ": " << why;
      context_.report("loading", 0, "waiting for " + shown_url_ + ": " + why);
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace retort::launch
