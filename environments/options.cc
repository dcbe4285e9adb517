#include "environments/options.h"

#include <cstdlib>

#include "base/error.h"
#include "base/private_file.h"
#include "http/url.h"

namespace retort::environments {
namespace {

[[noreturn]] void refuse_option(const std::string& field, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, field + ": " + why);
}

}  // namespace

void EnvironmentOptions::validate() const {
  // It is a program or a service.
  if (command.empty() && url.empty())
    refuse_option("command", "is missing, and so is url; expected one of them");
  if (!command.empty() && !url.empty())
    refuse_option("url", "command is given too; an environment is one of them");
  if (!command.empty() && command.front().empty())
    refuse_option("command", "its first word is empty; expected a program");
  if (!url.empty()) http::parse_url(url);

  // A key that a program has no use for is refused, or its user would take it for obeyed.
  const std::string no_effect = "has no effect without url; remove it";
  if (url.empty() && !api_key_env.empty()) refuse_option("api_key_env", no_effect);
  if (url.empty() && !api_key_file.empty()) refuse_option("api_key_file", no_effect);
  if (url.empty() && !ca_file.empty()) refuse_option("ca_file", no_effect);
  if (!api_key_env.empty() && !api_key_file.empty())
    refuse_option("api_key_file", "api_key_env is given too; the key is in one of them");

  if (episodes < 1 || episodes > 100'000)
    refuse_option("episodes", std::to_string(episodes) + " is not in [1, 100000]");
  if (start_timeout <= Duration(0)) refuse_option("start_timeout", "must be positive");
}

std::string read_api_key(const EnvironmentOptions& options) {
  if (!options.api_key_file.empty()) {
    std::string key = read_private_file(options.api_key_file);
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r'))
      key.pop_back();
    if (key.empty()) refuse_option("api_key_file", "'" + options.api_key_file + "' is empty");
    return key;
  }
  if (options.api_key_env.empty()) return "";
  const char* key = std::getenv(options.api_key_env.c_str());
  if (key == nullptr || *key == '\0')
    refuse_option("api_key_env", "the variable " + options.api_key_env + " is not set");
  return key;
}

}  // namespace retort::environments
