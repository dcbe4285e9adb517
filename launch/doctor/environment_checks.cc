// Environments of episodes: whether a program is there, and a service answers, from this host.
#include <chrono>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/process/start.h"
#include "engines/contract/engine.h"
#include "environments/make_environment.h"
#include "launch/doctor/checks.h"

namespace retort::launch::doctor {
namespace {

constexpr std::chrono::milliseconds kServiceAnswer{10'000};

Finding check_command(const std::string& role,
                      const environments::EnvironmentOptions& environment) {
  const std::string& program = environment.command.front();
  const std::string path = path_in_environment(program);
  if (path.empty())
    return problem(role + "there is no program '" + program + "' in PATH",
                   "install it on this host, or write its path in environment.command");
  return fine(role + "the run itself starts " + path);
}

Finding check_service(const std::string& role, environments::EnvironmentOptions environment) {
  const std::string shown = role + "the environment at " + engines::shown_url(environment.url);
  environment.start_timeout = kServiceAnswer;
  try {
    const auto service = environments::make_environment("doctor", environment, kServiceAnswer);
    const roles::EnvironmentInfo info = service->info();
    return fine(shown + " answers" + (info.user_turns ? ", also turns without calls" : ""));
  } catch (const Error& error) {
    return problem(shown + ": " + error.what(),
                   "start the service, or correct url or the key of roles.<name>.environment");
  }
}

}  // namespace

std::vector<Finding> check_environments(const HostShare& share) {
  std::vector<Finding> findings;
  for (const auto& [name, ranks] : share.ranks) {
    const auto& environment = share.recipe->roles.at(name).environment;
    if (!environment || ranks == 0) continue;
    const std::string role = "roles." + name + ": ";
    findings.push_back(environment->url.empty() ? check_command(role, *environment)
                                                : check_service(role, *environment));
  }
  return findings;
}

}  // namespace retort::launch::doctor
