// Environments of episodes: whether a program is there, and a service answers, from this host.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/process/start.h"
#include "engines/contract/engine.h"
#include "environments/make_environment.h"
#include "launch/doctor/checks.h"

namespace retort::launch::doctor {
namespace {

constexpr std::chrono::milliseconds kServiceAnswer{10'000};

// Says of a program that is not there what was probably meant.
Finding missing_program(const std::string& role, const std::string& key,
                        const std::vector<std::string>& command) {
  const std::string& program = command.front();
  const std::string what = role + "there is no program '" + program + "'";
  // It was written as for a shell, which would take it apart.
  if (command.size() == 1 && program.find(' ') != std::string::npos)
    return problem(what + ", which is one word with spaces",
                   "make each argument an item of " + key + ": [PROGRAM, ARGUMENT, ...]");
  if (program.find('/') != std::string::npos)
    return problem(what, "correct its path in " + key +
                             ", which is relative to the folder in which retort is started");
  return problem(what + " in PATH", "install it on this host, or write its path in " + key);
}

Finding check_command(const std::string& name,
                      const environments::EnvironmentOptions& environment) {
  const std::string role = "roles." + name + ": ";
  const std::string key = "roles." + name + ".environment.command";
  const std::string path = path_in_environment(environment.command.front());

  std::error_code ignored;
  if (path.empty() || !std::filesystem::is_regular_file(path, ignored))
    return missing_program(role, key, environment.command);
  if (::access(path.c_str(), X_OK) != 0)
    return problem(role + "'" + path + "' is a file that cannot be executed",
                   "chmod +x it, or begin " + key + " with what runs it, as in [python3, FILE]");
  return fine(role + "the run itself starts " + path);
}

Finding check_service(const std::string& name, environments::EnvironmentOptions environment) {
  const std::string shown =
      "roles." + name + ": the environment at " + engines::shown_url(environment.url);
  environment.start_timeout = kServiceAnswer;
  try {
    const auto service = environments::make_environment("doctor", environment, kServiceAnswer);
    const roles::EnvironmentInfo info = service->info();
    return fine(shown + " answers" + (info.user_turns ? ", also turns without calls" : ""));
  } catch (const Error& error) {
    return problem(shown + ": " + error.what(),
                   "start the service, or correct url or the key of roles." + name +
                       ".environment");
  }
}

}  // namespace

std::vector<Finding> check_environments(const HostShare& share) {
  std::vector<Finding> findings;
  for (const auto& [name, ranks] : share.ranks) {
    const auto& environment = share.recipe->roles.at(name).environment;
    if (!environment || ranks == 0) continue;
    findings.push_back(environment->url.empty() ? check_command(name, *environment)
                                                : check_service(name, *environment));
  }
  return findings;
}

}  // namespace retort::launch::doctor
