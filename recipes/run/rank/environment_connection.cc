#include "recipes/run/rank/environment_connection.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/process_name.h"
#include "recipes/roles/external_roles.h"
#include "recipes/run/rank/role_connections.h"

namespace retort::recipes {

std::shared_ptr<roles::RemoteEnvironment> remote_environment(const RankContext& context) {
  const Recipe& recipe = context.recipe;
  const std::string& role = recipe.environment->role;
  std::vector<std::string> replicas;
  for (int64_t rank = 0; rank < recipe.roles.at(role).world.world_size(); ++rank)
    replicas.push_back(process_name(role, rank));
  return std::make_shared<roles::RemoteEnvironment>(roles::RemoteEnvironment::Options{
      .role = role,
      .replicas = std::move(replicas),
      // The environment's own time is over first, and says more.
      .timeout = recipe.environment->timeout + recipe.rpc.timeout,
      .open_timeout = recipe.environment->episode_timeout + recipe.rpc.timeout,
      .patience = load_timeout_of(recipe, role)});
}

EnvironmentConnection::EnvironmentConnection(const RankContext& context, rpc::Agent& agent,
                                             std::shared_ptr<roles::RemoteEnvironment> environment)
    : links_(agent, {.find =
                         [&context](const std::string& peer, Deadline deadline) {
                           return find_peer(context, peer, deadline);
                         }}),
      environment_(std::move(environment)) {
  const std::string& role = context.recipe.environment->role;
  connect_role(context, links_, role);
  const bool comes_back = context.recipe.roles.at(role).restarts > 0;
  environment_->attach(agent, comes_back ? &links_ : nullptr);
  // Its destructor does not run if this throws, and the environment uses the links.
  try {
    environment_->info();
  } catch (...) {
    environment_->stop();
    throw;
  }
}

EnvironmentConnection::~EnvironmentConnection() { environment_->stop(); }

}  // namespace retort::recipes
