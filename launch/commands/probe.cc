// retort probe: what the answers of an inference engine mean, before a recipe relies on them.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "engines/contract/contract.h"
#include "engines/contract/traits.h"
#include "engines/make_engine.h"
#include "launch/commands/command_line.h"
#include "launch/document/recipe_file.h"
#include "launch/ranks/engine_contract.h"
#include "models/generation/request.h"
#include "recipes/roles/external_roles.h"

namespace retort::launch {
namespace {

struct ProbeCommand {
  std::string url;   // or a recipe: what it says goes for all its engines
  std::string role;  // of a recipe; "": all
  std::string engine, tokenizer;
  std::string model;  // folder with the weights that are served; "": none
  std::string served_model, api_key_env, ca_file;
  std::string purpose;  // of engines::Purpose; "": nothing is refused
  models::SamplingOptions sampling;
  int64_t wanted_top_k = 64;  // of purpose top_k
  int64_t timeout_seconds = 300;
  bool json = false;
};

// A server that is asked, what for, and how the answer is shown.
struct Target {
  engines::ExternalOptions external;
  std::string url;                      // one of external.url
  std::string local;                    // folder with the weights that it serves; "": none
  bool needs_local = false;             // without weights there it is an error
  std::optional<engines::Needs> needs;  // nullopt: nothing is refused
  std::chrono::seconds timeout{300};
  bool json = false;
};

// Probes one server, prints what was found, and then refuses what the needs are not met by.
int probe_target(const Target& target) {
  target.external.validate();
  std::optional<models::Decoder> local;
  if (!target.local.empty()) local = local_copy(target.local);
  if (target.needs_local && !local)
    throw Error(ErrorCode::kInvalidArgument,
                "--model '" + target.local +
                    "' has no *.safetensors, or more than 4 GiB of them: there is nothing to "
                    "compare with; name a folder with the weights, or leave it out");

  const auto engine =
      engines::make_engine(target.external, target.url, engines::read_api_key(target.external));
  const engines::Contract contract =
      probe_engine(*engine, target.external, target.url, local ? &*local : nullptr,
                   target.needs.value_or(engines::Needs{}), Deadline::after(target.timeout));
  const std::string text =
      target.json ? engines::to_json(contract) : engines::contract_table(contract);

  // What was found is shown before it may be refused.
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (target.needs) engines::check_contract(contract, *target.needs);
  return 0;
}

std::optional<engines::Needs> needs_of(const ProbeCommand& command) {
  if (command.purpose.empty()) return std::nullopt;
  engines::Needs needs{.what = parse_enum<engines::Purpose>(command.purpose),
                       .role = "probe",
                       .objective = command.purpose};
  command.sampling.validate();
  needs.sampling = command.sampling;
  needs.top_k = command.wanted_top_k;
  needs.temperature = command.sampling.temperature;
  return needs;
}

// Refuses what is said of an address beside a recipe, which says all of it itself.
void refuse_beside_recipe(const ProbeCommand& command) {
  const std::pair<const char*, const std::string*> options[] = {
      {"--engine", &command.engine},
      {"--tokenizer", &command.tokenizer},
      {"--model", &command.model},
      {"--served-model", &command.served_model},
      {"--api-key-env", &command.api_key_env},
      {"--ca-file", &command.ca_file},
      {"--for", &command.purpose}};
  for (const auto& [name, value] : options)
    if (!value->empty())
      throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is for an address; '" +
                                                   command.url +
                                                   "' is a recipe, which says it itself");
}

// All engines of a recipe, one after the other; the first that does not do ends it.
int probe_recipe(const ProbeCommand& command) {
  refuse_beside_recipe(command);
  // An engine's key is read from this process's environment, not from that of a role.
  const recipes::Recipe recipe = load_recipe(command.url, {}, {.cuda = true, .env_values = false});

  int64_t probed = 0;
  for (const auto& [name, role] : recipe.roles) {
    if (!role.external || (!command.role.empty() && command.role != name)) continue;
    for (const std::string& url : role.external->url) {
      if (!command.json) std::printf("%s %s\n", name.c_str(), url.c_str());

      // What a generator's engine serves now is not the student yet: it is shown, not judged.
      const bool follows = recipe.is_generator(name);
      const engines::Needs needs = recipes::engine_needs(recipe, name);
      // Rewards cannot be compared with a decoder's numbers.
      const bool compared = !follows && needs.what != engines::Purpose::kRewards &&
                            needs.what != engines::Purpose::kWords;

      probe_target({.external = *role.external,
                    .url = url,
                    .local = compared ? role.external->tokenizer : "",
                    .needs = follows ? std::nullopt : std::optional(needs),
                    .timeout = std::chrono::seconds(command.timeout_seconds),
                    .json = command.json});
      ++probed;
    }
  }

  // A name that is spelt wrong would pass, having probed nothing.
  if (probed == 0)
    throw Error(ErrorCode::kInvalidArgument,
                command.url + " has no external role" +
                    (command.role.empty() ? "" : " '" + command.role + "'"));
  return 0;
}

// False for what names no engine, which is refused when it is read.
bool asks_in_words(const std::string& engine) {
  for (const auto& [name, kind] : EnumNames<engines::EngineKind>::values)
    if (name == engine) return engines::traits_of(kind).words_alone;
  return false;
}

int run_probe(const ProbeCommand& command) {
  if (command.timeout_seconds < 1)
    throw Error(ErrorCode::kInvalidArgument, "--timeout must be at least 1");
  if (std::filesystem::is_regular_file(command.url)) return probe_recipe(command);
  if (!command.role.empty())
    throw Error(ErrorCode::kInvalidArgument, "--role is for a recipe, not for an address");
  if (command.engine.empty() || (command.tokenizer.empty() && !asks_in_words(command.engine)))
    throw Error(ErrorCode::kInvalidArgument,
                "'" + command.url +
                    "' is no recipe file; to probe an address give --engine and --tokenizer too");
  Target target{.external = {.engine = parse_enum<engines::EngineKind>(command.engine),
                             .url = {command.url},
                             .served_model = command.served_model,
                             .tokenizer = command.tokenizer,
                             .api_key_env = command.api_key_env,
                             .ca_file = command.ca_file},
                .url = command.url,
                .local = command.model,
                .needs_local = !command.model.empty(),
                .needs = needs_of(command),
                .timeout = std::chrono::seconds(command.timeout_seconds),
                .json = command.json};
  return probe_target(target);
}

}  // namespace

void add_probe(Command program) {
  Command c = program.command(
      "probe", "what the answers of an inference engine mean, and whether a role can use them");
  ProbeCommand& o = c.runs(run_probe);
  c.option("url", o.url, "where it listens: http://HOST:PORT; or a recipe, for all its engines")
      .required();
  c.option("--role", o.role, "of a recipe: this one alone");
  const auto any = [](const engines::EngineTraits&) { return true; };
  c.option("--engine", o.engine, engines::engines_that(any) + ", at a URL");
  c.option("--tokenizer", o.tokenizer,
           "folder with the tokenizer and the config.json of the model that is served");
  c.option("--model", o.model, "folder with its weights: log-probabilities are compared with them");
  c.option("--served-model", o.served_model,
           "its name at the server (default: the only one listed)");
  c.option("--api-key-env", o.api_key_env, "the environment variable that holds the server's key");
  c.option("--ca-file", o.ca_file, "PEM file of the authorities that are trusted");

  // These say what the engine is to serve.
  const Argument purpose =
      c.option("--for", o.purpose,
               "draws_with_ratio | draws | given_log_probs | top_k | hidden_states | "
               "rewards: fail unless it serves that");
  c.option("--temperature", o.sampling.temperature, "of draws, or of a top-k")
      .shows_default()
      .needs(purpose);
  c.option("--top-p", o.sampling.top_p, "of draws").shows_default().needs(purpose);
  c.option("--top-k", o.wanted_top_k, "tokens of a position, for top_k")
      .shows_default()
      .needs(purpose);
  c.option("--timeout", o.timeout_seconds, "seconds").shows_default();
  c.flag("--json", o.json, "the contract as JSON");
}

}  // namespace retort::launch
