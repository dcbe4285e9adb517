// What the program asks of an algorithm: its blocks, its roles, its checks, its costs, and the run
// itself. One object a recipe, listed in recipes/registry.cc; nothing outside recipes/ names one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipes/data/row_scan.h"
#include "recipes/data/sample.h"
#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"
#include "recipes/type/plan.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

class RecipeRun;
struct RankContext;
struct RunContext;

// A block of the recipe that belongs to some types only.
struct BlockUse {
  std::string_view name;   // "dpo"
  std::string_view least;  // the smallest one, for messages: "dpo: {beta: 0.1}"
  bool required = true;    // false: resolve() makes one with its defaults, or does without it
};

// A file or folder that a run reads.
struct InputPath {
  std::string key, path;
  std::string role = {};  // whose processes read it; "": the driving role's
};

// Stateless. Threads: any.
class RecipeType {
 public:
  virtual ~RecipeType() = default;

  // The value of `recipe:`.
  virtual std::string_view name() const = 0;
  // The blocks that only this type and a few others have. One that is not listed here is refused.
  virtual std::vector<BlockUse> blocks() const { return {}; }
  // Fills in what follows from other keys, before anything is checked.
  virtual void resolve(Recipe&, const RecipePlaces&) const {}
  // What train.learning_rate is where the key is left out: that of TRL 1.16's config of the method,
  // on all weights, and ten times that on an adapter. Here SFTConfig's.
  virtual double learning_rate(bool lora) const { return lora ? 2e-4 : 2e-5; }
  // Roles that hold a frozen model and answer for it.
  virtual std::vector<std::string> frozen_roles(const Recipe&) const { return {}; }
  // Whether this frozen role is asked in ids of its own tokenizer, whatever the student's is.
  virtual bool reads_by_own_tokenizer(const Recipe&, const std::string& /*role*/) const {
    return false;
  }
  // Whether what the student was before its training is compared with: is_own_reference
  // (recipes/rules/references.h).
  virtual bool compares_with_student(const Recipe&) const { return false; }
  // Those whose answers may stay on a device from one end to the other: rpc.device_maps.
  virtual std::vector<std::string> device_roles(const Recipe&) const { return {}; }
  // The numbers that the student learns to give a sequence, by a head in the place of its
  // vocabulary's; 0: it is a language model.
  virtual int64_t score_labels(const Recipe&) const { return 0; }
  // What a row of data.train and data.eval must have before it is tokenised.
  virtual data::RowCheck row_check(const Recipe&) const { return &data::check_sample_row; }
  // Whether train.tokens_per_batch forms the batches of a window beforehand, by lengths, so that a
  // cursor goes on only with the same budget and as many micro-batches a step.
  virtual bool forms_batches_by_length() const { return false; }
  // Whether it needs `generation:`, a role that draws samples with the student's weights.
  virtual bool generates(const Recipe&) const { return false; }
  // Whether its training adds train.neftune_noise_alpha's noise.
  virtual bool adds_embedding_noise() const { return false; }
  // How many samples it asks for at once, of all ranks together, where they may be episodes with an
  // `environment:`; 0: that is not known before. nullopt: they never are.
  virtual std::optional<double> episodes_at_once(const Recipe&) const { return std::nullopt; }
  // Why a `generation:` block is refused where generates() is false.
  virtual std::string no_generation(const Recipe&) const {
    return "this recipe draws no samples; remove the block";
  }
  // What can only be seen by looking at several blocks: refuses with the place of a key.
  virtual void check(const Recipe&, const RecipePlaces&) const {}
  virtual std::vector<InputPath> inputs(const Recipe&) const { return {}; }
  // What is known of models and inputs only once they are opened: refuses with the place of a key.
  virtual void check_inputs(const Recipe&, const RecipePlaces&) const {}

  // Numbers of metrics.jsonl that its page says to watch, most telling first; the progress of a run
  // shows them beside the loss. Some rows may lack one. A count (".../num_lost") is of what must
  // not be: it is shown by the rest of its name ("lost 13"), and only above 0. Types with
  // episodes_at_once() begin with that of lost ones, as nothing else says that a run goes on
  // without them.
  virtual std::vector<std::string> watched_metrics(const Recipe&) const { return {}; }

  // `retort plan`.
  virtual RecipePlan plan(const Recipe&) const { return {}; }
  // `retort audit`: prints the first `num_samples` samples as the trainer sees them (prompts, where
  // it draws what it trains on), and counts.
  virtual void audit(const Recipe& recipe, int64_t num_samples) const = 0;
  // `retort check`: the first row through the recipe's own numbers, against independent ones.
  virtual void self_check(const Recipe& recipe, SelfCheck& check) const = 0;
  // `retort cache`: refuses a recipe whose teacher's payloads cannot be kept, naming the key.
  virtual void check_cache(const Recipe& recipe) const;
  // And what a rank of the student does then, in the place of a run.
  virtual void write_cache(const RankContext& context) const;
  // `retort launch`: what a rank of the student runs. `context` must outlive it.
  virtual std::unique_ptr<RecipeRun> make_run(RunContext& context) const = 0;
};

}  // namespace retort::recipes
