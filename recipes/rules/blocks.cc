// Rules of the blocks as such: which must be there, and which must not.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

// Checks the keys above all blocks, and which blocks must and must not be there.
class BlockCheck {
 public:
  BlockCheck(const Recipe& recipe, const RecipePlaces& places)
      : recipe_(recipe), places_(places), type_(recipe_type(recipe)) {}

  void run() const {
    if (recipe_.output_dir.empty())
      places_.refuse({},
                     "`output_dir` is missing; expected the folder of the run, e.g. output_dir: "
                     "runs/first");
    for (const std::string& block : owned_blocks())
      check_block(block);
    check_generation_block();
  }

 private:
  // Returns all blocks that belong to some types only, each once.
  static std::vector<std::string> owned_blocks() {
    std::vector<std::string> names;
    for (const RecipeType* type : recipe_types())
      for (const BlockUse& block : type->blocks())
        if (std::find(names.begin(), names.end(), block.name) == names.end())
          names.emplace_back(block.name);
    return names;
  }

  static std::optional<BlockUse> use_of(const RecipeType& type, const std::string& block) {
    for (const BlockUse& use : type.blocks())
      if (use.name == block) return use;
    return std::nullopt;
  }

  // A block may only stand where the recipe's type uses it, and must where the type requires it.
  void check_block(const std::string& name) const {
    const bool given = has_block(recipe_, name);
    const std::string kind(type_.name());
    const std::optional<BlockUse> use = use_of(type_, name);
    if (!given && use && use->required)
      places_.refuse({}, "`" + name + "` is missing; recipe: " + kind + " needs at least " +
                             least_of(*use));
    if (!given || use) return;

    std::string owners;
    for (const RecipeType* type : recipe_types())
      if (use_of(*type, name)) owners += (owners.empty() ? "" : " or ") + std::string(type->name());
    places_.refuse({name}, "this block belongs to recipe: " + owners + ", the recipe is " + kind);
  }

  // An environment has a reward of its own, and rows that may name no answer.
  std::string least_of(const BlockUse& use) const {
    if (use.name == "rewards" && recipe_.environment) return "rewards: [{type: environment}]";
    return std::string(use.least);
  }

  void check_generation_block() const {
    const bool generates = type_.generates(recipe_);
    if (recipe_.generation && !generates)
      places_.refuse({"generation"}, type_.no_generation(recipe_));
    if (!recipe_.generation && generates)
      places_.refuse({},
                     "`generation` is missing; this recipe draws samples and needs at least "
                     "generation: {role: generator}");
    if (recipe_.weight_sync && !generates)
      places_.refuse({"weight_sync"}, "has no effect without a generator; remove the block");
  }

  const Recipe& recipe_;
  const RecipePlaces& places_;
  const RecipeType& type_;
};

}  // namespace

void check_blocks(const Recipe& recipe, const RecipePlaces& places) {
  BlockCheck(recipe, places).run();
}

}  // namespace retort::recipes
