#include "recipes/run/rank/agent_options.h"

#include "base/error.h"

namespace retort::recipes {
namespace {

// A role that serves answers from its device, so the student must have one for it.
void check_entry(const RankContext& context, const rpc::RpcOptions& rpc, at::Device device) {
  const std::string index = std::to_string(device.has_index() ? device.index() : 0);
  if (rpc.device_maps.at(Recipe::kDrivingRole).contains(index)) return;
  const std::string map = "rpc.device_maps." + context.role;
  throw Error(ErrorCode::kInvalidArgument,
              map +
                  " has no entry for the device that this rank computes on: add `<a device of "
                  "the student>: " +
                  index + "` to " + map + ", or give the role other devices")
      .with("device", device.str())
      .with("rank", context.name());
}

}  // namespace

bool has_device_map(const Recipe& recipe, const std::string& role) {
  return recipe.rpc.device_maps.contains(role);
}

std::map<std::string, std::map<std::string, int64_t>> device_maps_of(const Recipe& recipe,
                                                                     const std::string& role) {
  if (role == Recipe::kDrivingRole) return recipe.rpc.device_maps;
  if (!has_device_map(recipe, role)) return {};
  // The recipe's map leads from the student's devices to the role's. A role that serves sends the
  // other way, so it has the map turned round.
  std::map<std::string, int64_t> turned;
  for (const auto& [students, own] : recipe.rpc.device_maps.at(role))
    turned[std::to_string(own)] = std::stoll(students);
  return {{Recipe::kDrivingRole, turned}};
}

rpc::Agent::Options agent_options(const RankContext& context, at::Device device) {
  rpc::Agent::Options options{.name = context.name(),
                              .secret = context.secret,
                              .run = context.run,
                              .rpc = context.recipe.rpc,
                              .restart = static_cast<uint64_t>(context.life),
                              .devices = nullptr,
                              .device = device};
  options.rpc.heartbeat_interval = context.recipe.rpc.heartbeats(context.recipe.num_processes());
  if (!context.address.empty()) options.rpc.bind = context.address;
  if (!context.advertise.empty()) options.rpc.advertise = context.advertise;
  options.rpc.device_maps = device_maps_of(context.recipe, context.role);
  if (options.rpc.device_maps.empty()) return options;

  if (context.role != Recipe::kDrivingRole) check_entry(context, options.rpc, device);
  options.devices = rpc::load_device_transfer();
  return options;
}

}  // namespace retort::recipes
