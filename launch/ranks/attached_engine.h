// The engine of a rank that speaks for one: started if the role says how, waited for, probed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/error.h"
#include "engines/contract/contract.h"
#include "engines/contract/engine.h"
#include "engines/weights/model_watch.h"
#include "launch/ranks/engine_process.h"
#include "models/config/config.h"
#include "models/decoder/decoder.h"
#include "recipes/run/rank/rank_context.h"

namespace retort::launch {

// Threads: compute. `context` must outlive it.
class AttachedEngine {
 public:
  explicit AttachedEngine(const recipes::RankContext& context);

  // Starts the engine, anew if it runs, and waits until it serves the model. Errors: kTimeout at
  // `deadline`, kCancelled when the run stops.
  engines::EngineState start(Deadline deadline);

  // kUnavailable if the engine was started here and has ended.
  void check();
  bool starts_it() const { return !options_.command.empty(); }
  const std::shared_ptr<engines::Engine>& engine() const { return engine_; }

  // The config in the folder of the tokenizer; kMismatch if the engine's own numbers do not fit it.
  models::ModelConfig config(const engines::EngineState& state) const;

  // Asks what the engine's answers mean, keeps it in the run's folder, and refuses what the role
  // cannot use. `local`: what it serves, or null.
  engines::Contract probe(const models::Decoder* local, Deadline deadline);

  // Begins a watch, after the probe. A process that was started again must find the model that the
  // first one found: an engine that was away may come back with another. kInvalidArgument, which
  // ends the run and is not tried again (the same model would answer), as look(). Returns the
  // numbers that count.
  engines::FirstNumbers begin(engines::ModelWatch& watch, Deadline deadline);
  void look(engines::ModelWatch& watch);

 private:
  // A file of what was found out about this replica's engine.
  std::filesystem::path found(const std::string& ending) const;
  engines::Contract asked(const models::Decoder* local, const engines::Needs& needs,
                          Deadline deadline);
  // Runs `fn`; its errors name the engine.
  template <class Fn>
  void with_url(Fn fn) const {
    try {
      fn();
    } catch (const Error& error) {
      throw error.with("url", shown_url_);
    }
  }
  std::filesystem::path log() const;
  engines::EngineState wait(Deadline deadline);

  const recipes::RankContext& context_;
  const engines::ExternalOptions& options_;
  const std::string url_;
  const std::string shown_url_;  // without secrets
  std::unique_ptr<EngineProcess> process_;
  std::shared_ptr<engines::Engine> engine_;
};

}  // namespace retort::launch
