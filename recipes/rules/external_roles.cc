// Rules of roles.<name>.external: what engines of others cannot do.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engines/contract/draw_support.h"
#include "engines/contract/traits.h"
#include "recipes/roles/external_roles.h"

namespace retort::recipes {
namespace {

using engines::EngineTraits;
using engines::ExternalOptions;
using engines::WeightRoute;

bool gives_rewards(const EngineTraits& traits) { return traits.rewards; }

// The checks of one external role, which differ by what the recipe asks of it.
class ExternalCheck {
 public:
  ExternalCheck(const Recipe& recipe, const RecipePlaces& places, std::string name,
                const ExternalOptions& external)
      : recipe_(recipe),
        places_(places),
        name_(std::move(name)),
        external_(external),
        engine_(enum_name(external.engine)),
        traits_(engines::traits_of(external.engine)) {}

  void run() const {
    if (name_ == Recipe::kDrivingRole)
      places_.refuse({"roles", name_, "external"}, "the student trains here; it needs a `model`");
    check_options();
    if (traits_.words_alone)
      check_in_words();
    else if (recipe_.is_generator(name_))
      check_generator();
    else if (scores())
      check_reward();
    else
      check_frozen();
  }

 private:
  void refuse(const std::string& key, const std::string& why) const {
    places_.refuse({"roles", name_, "external", key}, why);
  }

  void check_options() const {
    try {
      external_.validate();
    } catch (const Error& error) {
      places_.refuse({"roles", name_, "external"}, error.message());
    }
    if (external_.tokenizer.empty() && !traits_.words_alone)
      refuse("tokenizer",
             "is missing; expected a folder with the tokenizer and config.json of the model that "
             "is served");
  }

  // A generator follows the student, so new weights must reach the engine; and the numbers that it
  // gives with its tokens are used as they come.
  void check_generator() const {
    if (!traits_.draws)
      refuse("engine",
             engine_ + " draws no completions; use " +
                 engines::engines_that([](const EngineTraits& other) { return other.draws; }));
    const WeightRoute wanted = traits_.weights;
    if (external_.weights.via != wanted)
      places_.refuse({"roles", name_, "external", "weights", "via"},
                     "a generator follows the student: " + std::string(enum_name(wanted)) +
                         " for engine: " + engine_);
    if (wanted == WeightRoute::kGguf && external_.served_model.empty())
      refuse("served_model", "is missing; the GGUF file is <weights.folder>/<served_model>.gguf");
    if (wanted == WeightRoute::kGguf && external_.served_model.find('/') != std::string::npos)
      refuse("served_model",
             "has a slash; the GGUF file is <weights.folder>/<served_model>.gguf, so the server "
             "needs a name for it that is a file's (--alias)");
    if (recipe_.grpo) check_ratio();
    check_draws();
  }

  void check_draws() const {
    const GenerationOptions& generation = *recipe_.generation;
    const auto unsupported =
        engines::unsupported_option(external_.engine, {.sampling = generation.sampling,
                                                       .min_new_tokens = generation.min_new_tokens,
                                                       .stop = generation.stop});
    if (unsupported) places_.refuse({"generation", unsupported->key}, unsupported->why);
  }

  // Importance ratios need each token's probability under the distribution that it was drawn from,
  // and under the same one in training. Whatever else an engine's numbers may mean the probe finds.
  void check_ratio() const {
    const GenerationOptions& generation = *recipe_.generation;
    if (!generation.whole_distribution())
      places_.refuse({"generation"},
                     "grpo compares the probabilities of drawn tokens, and no engine says from "
                     "which tokens it drew; use top_p 1, top_k 0, min_p 0, typical_p 1, "
                     "min_new_tokens 0 and no penalties, or a generator of ours (`model`)");
    if (!traits_.tempered_draws && generation.sampling.temperature != 1)
      places_.refuse({"generation", "temperature"},
                     "grpo compares the probabilities of drawn tokens, and " +
                         std::string(traits_.program) +
                         "'s are those at temperature 1; use temperature 1, SGLang, vLLM with "
                         "--logprobs-mode processed_logprobs, or a generator of ours (`model`)");
  }

  bool scores() const {
    const auto roles = reward_roles(recipe_);
    return std::find(roles.begin(), roles.end(), name_) != roles.end();
  }

  bool judges() const { return is_judge(recipe_, name_); }

  void check_in_words() const {
    for (const rewards::RewardOptions& reward : recipe_.rewards)
      if (reward.role == name_ && reward.type == rewards::RewardType::kModel)
        refuse("engine",
               engine_ +
                   " gives no number for a completion, as a reward of type: model needs; use " +
                   engines::engines_that(gives_rewards) + ", in a role of its own");
    if (!judges())
      refuse(
          "engine",
          engine_ +
              " answers in words alone, so that it can only be the role of a reward of type: "
              "judge; use " +
              engines::engines_that([](const EngineTraits& other) { return !other.words_alone; }));
    check_no_weights();
  }

  void check_reward() const {
    if (judges())
      refuse("engine",
             "a judge is asked in words: openai, which vLLM, SGLang and llama.cpp's "
             "server speak as well");
    if (!gives_rewards(traits_))
      refuse("engine", engine_ + " gives no number for a completion; use " +
                           engines::engines_that(gives_rewards) +
                           ", with a model that has the output scores");
    check_no_weights();
  }

  void check_no_weights() const {
    if (external_.weights.via != WeightRoute::kNone)
      places_.refuse({"roles", name_, "external", "weights", "via"},
                     "is for a generator; this role's model does not change");
  }

  void check_frozen() const {
    check_no_weights();
    check_cache("dpo", recipe_.dpo ? recipe_.dpo->reference_cache : "");
    check_cache("kto", recipe_.kto ? recipe_.kto->reference_cache : "");
    const bool teaches = recipe_.distill && is_teacher();
    if (!teaches) return;

    const DistillOptions& distill = *recipe_.distill;
    if (distill.payload == roles::PayloadKind::kFull)
      places_.refuse({"distill", "payload"},
                     "no engine gives the whole vocabulary; use topk with '" + name_ + "'");
    if (distill.payload == roles::PayloadKind::kSampled)
      places_.refuse(
          {"distill", "payload"},
          "sampled is drawn by a teacher of ours (`model`); use topk with '" + name_ + "'");
    if (distill.payload == roles::PayloadKind::kHiddenStates && !traits_.hidden_states)
      places_.refuse({"distill", "payload"},
                     "this engine gives no hidden states; use topk with '" + name_ + "'");
    if (distill.payload == roles::PayloadKind::kTopK && distill.temperature != 1 &&
        distill.tail != losses::Tail::kRenormalize)
      places_.refuse({"distill", "temperature"},
                     "the engine's numbers are at temperature 1: of another one only the shares "
                     "among the ids that it lists are known; use tail: renormalize, temperature: "
                     "1, or a teacher of ours (`model`)");
  }

  void check_cache(const std::string& block, const std::string& folder) const {
    if (!folder.empty())
      places_.refuse({block, "reference_cache"},
                     "an external reference does not say which weights it serves, so that nothing "
                     "is kept for other runs; remove the key");
  }

  bool is_teacher() const {
    const auto& teachers = recipe_.distill->teachers;
    return std::any_of(teachers.begin(), teachers.end(),
                       [&](const TeacherOptions& teacher) { return teacher.role == name_; });
  }

  const Recipe& recipe_;
  const RecipePlaces& places_;
  const std::string name_;
  const ExternalOptions& external_;
  const std::string engine_;  // its name
  const EngineTraits& traits_;
};

}  // namespace

void check_external_roles(const Recipe& recipe, const RecipePlaces& places) {
  for (const auto& [name, role] : recipe.roles)
    if (role.external) ExternalCheck(recipe, places, name, *role.external).run();
}

}  // namespace retort::recipes
