#include "launch/ranks/replica_world.h"

#include "models/checkpoint.h"

namespace retort::launch {

std::unique_ptr<parallel::World> make_replica_world(const recipes::RankContext& context) {
  const parallel::Layout& role = context.role_options().world;
  if (role.tp * role.pp == 1 && role.device == parallel::Device::kCpu) return nullptr;

  const parallel::Coordinate place = parallel::coordinate_of(role, context.rank);
  // One that is started again meets none of the keys that it left in the store.
  parallel::World::Options options = context.world_options("replica-" + std::to_string(place.dp) +
                                                           "-" + std::to_string(context.restart));
  options.layout = role;
  options.layout.dp = 1;
  options.rank = parallel::rank_of(options.layout, {.tp = place.tp, .dp = 0, .pp = place.pp});
  // All replicas share out the devices of a host.
  options.device_sharers = {.rank = context.rank,
                            .size = role.world_size(),
                            .store_prefix = context.store_prefix(context.role) + "devices/"};
  return std::make_unique<parallel::World>(std::move(options));
}

models::Decoder load_role_model(const recipes::RankContext& context, parallel::World* world,
                                at::Device device) {
  const recipes::RoleOptions& role = context.role_options();
  context.report("loading", 0, role.model);
  return models::load_decoder(role.model, models::parse_dtype(std::string(enum_name(role.dtype))),
                              world ? models::Placement::of(*world) : models::Placement{}, device);
}

std::string replica_leader(const recipes::RankContext& context) {
  const parallel::Layout& role = context.role_options().world;
  const int64_t replica = parallel::coordinate_of(role, context.rank).dp;
  return process_name(context.role, parallel::rank_of(role, {.tp = 0, .dp = replica, .pp = 0}));
}

}  // namespace retort::launch
