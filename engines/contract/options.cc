#include "engines/contract/options.h"

#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/private_file.h"
#include "engines/contract/traits.h"
#include "http/url.h"

namespace retort::engines {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, field + ": " + why);
}

}  // namespace

void ExternalOptions::validate() const {
  // The first keys say where the engine is and who starts it.
  if (url.empty()) refuse("url", "is missing; expected where the engine listens");
  for (const std::string& one : url)
    http::parse_url(one);
  if (std::set(url.begin(), url.end()).size() < url.size())
    refuse("url", "names an address twice; a replica is a server of its own");
  if (!command.empty() && url.size() > 1)
    refuse("command", "starts one engine, but url has " + std::to_string(url.size()) +
                          " addresses; give one, or start the engines yourself");

  // The next ones say how it is asked.
  if (max_inflight < 1) refuse("max_inflight", "must be at least 1");
  if (timeout <= Duration(0)) refuse("timeout", "must be positive");
  if (load_timeout <= Duration(0)) refuse("load_timeout", "must be positive");
  if (tolerance && !(*tolerance > 0)) refuse("tolerance", "must be positive");
  if (!api_key_env.empty() && !api_key_file.empty())
    refuse("api_key_file", "api_key_env is given too; the key is in one of them");

  // A key that this kind of engine has no use for is refused, or its user would take it for obeyed.
  const EngineTraits& traits = traits_of(engine);
  const std::string no_effect = "has no effect with engine: " + std::string(enum_name(engine));
  if (!tensors.empty() && !traits.own_tensor_names)
    refuse("tensors", "is for engine: " + engines_that([](const EngineTraits& other) {
                        return other.own_tensor_names;
                      }) + "; remove it");
  if (traits.words_alone && !tokenizer.empty())
    refuse("tokenizer", no_effect + ", which is asked in words; remove it");
  if (traits.words_alone && tolerance)
    refuse("tolerance", no_effect + ", which gives no numbers; remove it");

  // The last keys say how its weights follow the student's.
  if (weights.canary_tokens < 1) refuse("weights.canary_tokens", "must be at least 1");
  if (weights.via == WeightRoute::kNone && !weights.folder.empty())
    refuse("weights.folder", "has no effect with via: none; remove it");
  if (weights.via != WeightRoute::kNone && weights.folder.empty())
    refuse("weights.folder", "is missing; expected a folder that the engine sees too");
}

std::string read_api_key(const ExternalOptions& options) {
  if (!options.api_key_file.empty()) {
    std::string key = read_private_file(options.api_key_file);
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r'))
      key.pop_back();
    if (key.empty()) refuse("api_key_file", "'" + options.api_key_file + "' is empty");
    return key;
  }
  if (options.api_key_env.empty()) return "";
  const char* key = std::getenv(options.api_key_env.c_str());
  if (key == nullptr || *key == '\0')
    refuse("api_key_env", "the variable " + options.api_key_env + " is not set");
  return key;
}

}  // namespace retort::engines
