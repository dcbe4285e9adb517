// What a rank of the student runs of a recipe: its rows, its objective, its evaluation. A class for
// each recipe, in recipes/<name>/setup.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "recipes/data/row_set.h"
#include "recipes/run/checkpoints/checkpoint_store.h"
#include "recipes/run/inputs/batch_options.h"
#include "recipes/run/loop/evaluate.h"
#include "recipes/run/loop/objective.h"
#include "recipes/run/rank/rank_context.h"
#include "roles/trainer/trainer.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::recipes {

// What every recipe is given.
struct RunContext {
  const RankContext& rank;
  parallel::World& world;
  models::Tokenizer tokenizer;
  models::ChatTemplate chat;
  int64_t vocab_rows = 0;  // of the student's head
  rpc::Agent& agent;
  rpc::PeerLinks& links;  // all of the agent's peers

  const Recipe& recipe() const { return rank.recipe; }
  std::filesystem::path cache() const { return rank.run_folder / "cache"; }
  data::BatchOptions batches() const { return batch_options(recipe(), world.coordinate().dp); }
};

// The calls come in this order: rows, steps_per_epoch (if epochs are asked for), start, then
// objective and evaluator.
class RecipeRun {
 public:
  virtual ~RecipeRun() = default;
  virtual const data::RowSet& rows() const = 0;
  virtual int64_t steps_per_epoch() = 0;
  // How many places of its epoch's order a checkpoint's cursor has behind it; nullopt: the cursor
  // does not say. Here that of the batch streams.
  virtual std::optional<int64_t> used_places(const data::Cursor& cursor) const {
    return data::used_places(cursor);
  }
  // Connects to the other roles and moves the data to where `state` left it.
  virtual void start(roles::Trainer& trainer, const LoopState& state) = 0;
  virtual Objective& objective() = 0;
  virtual Evaluator evaluator() { return {}; }
};

}  // namespace retort::recipes
