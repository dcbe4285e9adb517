// The role that is an environment.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "environments/make_environment.h"
#include "launch/ranks/serving_roles.h"
#include "roles/environment/server.h"

namespace retort::launch {

using recipes::RankContext;

namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 100ms;

// Stops an environment that is waited for when the run stops: it has its own time to begin, which
// may be long.
class StopWatch {
 public:
  StopWatch(const RankContext& context, roles::Environment& environment)
      : thread_([&context, &environment](const std::stop_token& over) {
          while (!over.stop_requested()) {
            if (context.stop_requested()) return environment.stop();
            std::this_thread::sleep_for(kLookEvery);
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

ServingRank make_environment_server(const RankContext& context) {
  const environments::EnvironmentOptions& options = *context.role_options().environment;
  const std::string what = options.url.empty() ? options.command.front() : "the service";
  context.report("loading", 0, "waiting for " + what);
  const std::shared_ptr<roles::Environment> environment =
      environments::make_environment(context.name(), options, context.recipe.environment->timeout);

  ServingRank rank;
  const StopWatch watch(context, *environment);
  rank.role = std::make_unique<roles::EnvironmentServer>(context.name(), environment);
  return rank;
}

}  // namespace retort::launch
