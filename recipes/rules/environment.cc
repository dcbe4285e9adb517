// Rules of the block `environment:` and of roles that are environments.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "models/text/turn_suffix.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/rules/references.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/inputs/episode_options.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

// A role that answers turns does nothing else.
void check_use(const Recipe& recipe, const RecipePlaces& places, const std::string& role) {
  if (recipe.is_generator(role))
    places.refuse({"generation", "role"},
                  "'" + role + "' is an environment; give the generator a role of its own");
  for (size_t i = 0; i < recipe.rewards.size(); ++i)
    if (recipe.rewards[i].role == role)
      places.refuse(
          {"rewards", std::to_string(i), "role"},
          "'" + role + "' is an environment, which scores its own episodes by type: environment");
  const auto frozen = frozen_roles(recipe);
  if (std::find(frozen.begin(), frozen.end(), role) != frozen.end())
    places.refuse({"roles", role, "environment"},
                  "the role is asked for log-probabilities elsewhere in this recipe; give the "
                  "environment a role of its own");
}

// All of an episode, whose prompt comes first, is a row; a turn is a part of it.
void check_lengths(const Recipe& recipe, const RecipePlaces& places) {
  const int64_t tokens = recipe.environment->max_tokens;
  const int64_t turn = recipe.generation->max_new_tokens;
  const KeyPath path{"environment", "max_tokens"};
  if (tokens >= recipe.data.max_length)
    places.refuse(path, "leaves no room for a prompt in data.max_length = " +
                            std::to_string(recipe.data.max_length) + "; raise that, or lower this");
  if (turn > tokens)
    places.refuse(path, "is below generation.max_new_tokens = " + std::to_string(turn) +
                            ", the tokens of one turn");
}

// It is allowed, because a reward may look at the first call alone.
void warn_of_one_turn(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.environment->max_turns == 1)
    places.warn({"environment", "max_turns"},
                "with 1 no call is ever answered, since the last turn of an episode has no answer: "
                "the model reads no result, and an episode with a call counts as cut; expected 2 "
                "or more");
}

// A request whose episodes may still begin anew must not end the run.
void check_times(const Recipe& recipe, const RecipePlaces& places) {
  const Duration wait = longest_wait(*recipe.environment);
  if (recipe.generation->timeout < wait)
    places.refuse(
        {"generation", "timeout"},
        "is below the " + format_duration(wait) +
            " that an episode may wait for its environment: environment.episode_timeout = " +
            format_duration(recipe.environment->episode_timeout) +
            " for each of its attempts; raise this, or lower that");
}

// Episodes begin with the conversation of a row. Whether a prompt is one of messages, the row says.
void check_rows(const data::DataOptions& data, const RecipePlaces& places) {
  using data::Format;
  const auto check = [&](const char* block, const std::vector<data::Source>& sources) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const Format format = sources[i].format;
      if (format == Format::kText || format == Format::kAlpaca || format == Format::kInputIds)
        places.refuse({"data", block, std::to_string(i), "format"},
                      "has no conversation, with which an episode begins; expected messages, "
                      "sharegpt, or one whose prompt is an array of messages");
    }
  };
  check("train", data.train);
  check("eval", data.eval);
}

// Generators render episodes, and do not know on which day the run began.
void check_day(const data::DataOptions& data, const models::ChatTemplate& chat,
               const RecipePlaces& places) {
  const auto prints_day = [](const std::string& source) {
    return source.find("strftime_now") != std::string::npos;
  };
  if (data.template_date || !(prints_day(chat.source()) || prints_day(chat.tool_use_source())))
    return;
  places.refuse({"data", "template_date"},
                "is missing: the chat template prints the day (strftime_now), and generators must "
                "print the same one in every episode; write a day, like 2026-11-23");
}

// An episode has one call open at a time, which must not wait for those of others.
void check_calls(const Recipe& recipe, const RecipePlaces& places) {
  const std::string& role = recipe.environment->role;
  const int64_t episodes = recipe.roles.at(role).environment->episodes;
  if (episodes > recipe.rpc.max_inflight_calls)
    places.refuse({"roles", role, "environment", "episodes"},
                  std::to_string(episodes) +
                      " turns may wait for answers at once, and rpc.max_inflight_calls lets " +
                      std::to_string(recipe.rpc.max_inflight_calls) +
                      "; raise that, or spread episodes over more of world.dp");
}

}  // namespace

void check_environment_role(const std::string& name, const RoleOptions& role,
                            const RecipePlaces& places) {
  const auto refuse = [&](const std::string& key, const std::string& why) {
    places.refuse({"roles", name, key}, why);
  };
  if (name == Recipe::kDrivingRole)
    refuse("environment", "the student trains here; it needs a `model`");
  if (!role.model.empty() || role.external)
    refuse(role.external ? "external" : "model",
           "a role has a `model`, is `external` or an `environment`; remove two of the three");

  const RoleOptions usual;
  const std::string no_weights = "an environment has no weights; remove the key";
  if (role.lora) refuse("lora", no_weights);
  if (role.dtype != usual.dtype) refuse("dtype", no_weights);
  if (role.batching != usual.batching)
    refuse("batching", "is for teachers and references; an environment answers each turn alone");
  if (!role.devices.empty()) refuse("devices", "an environment computes on no device of the run");

  const parallel::Layout& world = role.world;
  const parallel::Layout one;
  const auto refuse_world = [&](const char* key, const std::string& why) {
    places.refuse({"roles", name, "world", key}, why);
  };
  const std::string alone = "an environment is one process a replica; use dp for more of them";
  if (world.tp > 1) refuse_world("tp", alone);
  if (world.pp > 1) refuse_world("pp", alone);
  if (world.device != one.device)
    refuse_world("device", "an environment computes on no device of the run; remove the key");
  if (world.sequence_parallel)
    refuse_world("sequence_parallel", "has no effect on an environment, which has no activations");
}

void check_environment(const Recipe& recipe, const RecipePlaces& places) {
  for (size_t i = 0; i < recipe.rewards.size(); ++i)
    if (recipe.rewards[i].type == rewards::RewardType::kEnvironment && !recipe.environment)
      places.refuse({"rewards", std::to_string(i), "type"},
                    "environment needs the block `environment`, whose episodes have rewards");
  if (!recipe.environment) return;
  if (!recipe_type(recipe).episodes_at_once(recipe))
    places.refuse({"environment"},
                  "this block belongs to recipe: grpo, rejection_sampling or on_policy_distill, "
                  "the recipe is " +
                      recipe.recipe.text +
                      (recipe.distill ? ", where lmbda below 1 takes batches of the data, which "
                                        "are no episodes"
                                      : ""));

  const std::string& role = recipe.environment->role;
  const KeyPath path{"environment", "role"};
  check_declared(recipe.roles, places, path, role);
  if (!recipe.roles.at(role).environment)
    places.refuse(path, "\"" + role + "\" has no environment; write roles." + role +
                            ": {environment: {command: [PROGRAM, ...]}}, or {url: ...}");
  check_use(recipe, places, role);

  if (!recipe.generation->stop.empty())
    places.refuse({"generation", "stop"},
                  "with environment: a turn ends at the template's end token; remove the key");
  warn_of_one_turn(recipe, places);
  check_lengths(recipe, places);
  check_times(recipe, places);
  check_rows(recipe.data, places);
  check_calls(recipe, places);
}

void check_turns(const Recipe& recipe, const RecipePlaces& places) {
  // A student's model without a tokenizer beside it is refused elsewhere.
  const std::filesystem::path folder = recipe.student().model;
  if (!recipe.environment || !std::filesystem::exists(folder / "tokenizer.json")) return;
  const models::ChatTemplate chat = load_chat(recipe);
  check_day(recipe.data, chat, places);
  try {
    tool_format(*recipe.environment, chat);
  } catch (const Error& error) {
    places.refuse({"environment", "tool_format"}, error.message(), error.code());
  }
  const models::Tokenizer tokenizer = models::Tokenizer::load(folder);
  try {
    const models::TurnSuffix joined(chat, tokenizer);
  } catch (const Error& error) {
    places.refuse({"environment"},
                  error.message() + "; give a chat template with tools by data.chat_template",
                  error.code());
  }
}

}  // namespace retort::recipes
