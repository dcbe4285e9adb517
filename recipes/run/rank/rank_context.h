// Everything that the process of a rank was told by whoever started it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/process_name.h"
#include "parallel/device_module.h"
#include "parallel/world.h"
#include "recipes/document/recipe.h"
#include "recipes/roles/device_users.h"

namespace retort::recipes {

struct RankContext {
  Recipe recipe;
  std::filesystem::path run_folder;
  std::string run;  // id of this start of the run
  std::string role;
  int64_t rank = 0;
  int64_t incarnation = 0;  // counts restarts of the run; part of every store key
  int64_t restart = 0;      // counts restarts of this serving process within it
  int64_t life = 0;         // larger than that of every process of this name before in this start
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  // Where this process listens, in numbers, and what it tells others instead; empty: the same.
  std::string address, advertise;
  std::string secret;
  parallel::ConnectStore connect_store;  // with proof of the secret
  bool resume = false;
  bool writes_cache = false;  // `retort cache`: the driving role keeps what its teacher says
  int64_t threads = 1;
  // What is on its host with it; empty: not known.
  RanksOnHost ranks_on_host;
  // of a role with world.device: cuda
  std::shared_ptr<parallel::DeviceModule> device_module;
  std::function<bool()> stop_requested;
  // state: loading | waiting | training | saving | serving | done | stopped | interrupted |
  // diverged
  std::function<void(const std::string& state, int64_t step, const std::string& message)> report;
  // Reports as report() does what somebody should look at: it stays on the screen and in
  // status.json until there is another.
  std::function<void(const std::string& state, int64_t step, const std::string& message)> warn;

  const RoleOptions& role_options() const { return recipe.roles.at(role); }
  std::string name() const { return process_name(role, rank); }
  std::string store_prefix(const std::string& of_role) const {
    return run + "/" + of_role + "/" + std::to_string(incarnation) + "/";
  }

  // What a World of this role needs besides its layout and rank: `world` names it among the role's.
  parallel::World::Options world_options(const std::string& world) const {
    return {.role = role,
            .store_host = store_host,
            .store_port = store_port,
            .store_prefix = store_prefix(role) + world + "/",
            .timeout = recipe.launch.collective_timeout,
            .connect_store = connect_store,
            .device_module = device_module,
            .device_users = device_users(recipe, role, ranks_on_host),
            .address = address};
  }
};

}  // namespace retort::recipes
