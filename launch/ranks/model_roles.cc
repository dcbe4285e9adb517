// The roles whose model is one of ours.
#include <memory>
#include <string>
#include <utility>

#include "base/process_name.h"
#include "launch/ranks/episodes.h"
#include "launch/ranks/serving_roles.h"
#include "models/checkpoint/adapter.h"
#include "models/checkpoint/checkpoint.h"
#include "models/decoder/decoder.h"
#include "parallel/layout.h"
#include "parallel/world.h"
#include "recipes/roles/adapter.h"
#include "recipes/rollout/local_reward_models.h"
#include "recipes/run/rank/agent_options.h"
#include "recipes/run/rank/rank_context.h"
#include "roles/generator/replica_engine.h"
#include "roles/generator/server.h"
#include "roles/reward/judge_server.h"
#include "roles/reward/score_server.h"
#include "roles/teacher/server.h"

namespace retort::launch {

using recipes::RankContext;
using recipes::RoleOptions;

namespace {

// The ranks of a replica, which hold one model together: dp 1, ranks from 0. Replicas share no
// group, so that one that is lost takes no other along. Null where a replica is one rank on the
// CPU.
std::unique_ptr<parallel::World> make_replica_world(const RankContext& context) {
  const parallel::Layout& role = context.role_options().world;
  if (role.tp * role.pp == 1 && role.device == parallel::Device::kCpu) return nullptr;

  const parallel::Coordinate place = parallel::coordinate_of(role, context.rank);
  // A replica that is started again meets none of the keys that its life before left in the store.
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

// This rank's part of the role's model, on `device`; reports that it is loading. `world`: of the
// replica; null where this rank holds all of it.
models::Decoder load_role_model(const RankContext& context, parallel::World* world,
                                at::Device device) {
  const RoleOptions& role = context.role_options();
  context.report("loading", 0, role.model);
  return models::load_decoder(role.model, models::parse_dtype(std::string(enum_name(role.dtype))),
                              world ? models::Placement::of(*world) : models::Placement{}, device);
}

// The name of the first rank of this rank's replica, which speaks for it: "teacher/2".
std::string replica_leader(const RankContext& context) {
  const parallel::Layout& role = context.role_options().world;
  const int64_t replica = parallel::coordinate_of(role, context.rank).dp;
  return process_name(context.role, parallel::rank_of(role, {.tp = 0, .dp = replica, .pp = 0}));
}

at::Device device_of(const parallel::World* world) {
  return world ? world->device() : at::Device(at::kCPU);
}

// The world, where several ranks hold one model; null: this rank has all of it.
parallel::World* replica_of(const RankContext& context, const ServingRank& rank) {
  const parallel::Layout& layout = context.role_options().world;
  return layout.tp * layout.pp == 1 ? nullptr : rank.world.get();
}

}  // namespace

ServingRank make_teacher(const RankContext& context) {
  const RoleOptions& role = context.role_options();
  ServingRank rank{.world = make_replica_world(context)};
  parallel::World* replica = replica_of(context, rank);
  models::Decoder decoder = load_role_model(context, replica, device_of(rank.world.get()));
  auto teacher = std::make_unique<roles::Teacher>(
      replica_leader(context), std::move(decoder), models::Tokenizer::load(role.model),
      roles::Teacher::Replica{
          .world = replica,
          .folder = role.model,
          .store = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)},
          .answers_on_device = recipes::has_device_map(context.recipe, context.role)});

  if (role.batching == recipes::Batching::kDynamic)
    teacher->set_batching(roles::Teacher::Batching::kDynamic);
  rank.published_together = replica != nullptr;
  rank.role = std::move(teacher);
  return rank;
}

ServingRank make_score_server(const RankContext& context) {
  const RoleOptions& role = context.role_options();
  ServingRank rank{.world = make_replica_world(context)};
  parallel::World* replica = replica_of(context, rank);
  context.report("loading", 0, role.model);
  rank.role = std::make_unique<roles::ScoreServer>(
      replica_leader(context),
      models::load_classifier(role.model, models::parse_dtype(std::string(enum_name(role.dtype))),
                              {}, replica ? models::Placement::of(*replica) : models::Placement{},
                              device_of(rank.world.get())),
      models::Tokenizer::load(role.model),
      roles::Teacher::Replica{.world = replica, .folder = role.model});
  rank.published_together = replica != nullptr;
  return rank;
}

ServingRank make_judge_server(const RankContext& context) {
  ServingRank rank{.world = make_replica_world(context)};
  rank.role =
      recipes::make_judge(context.recipe, context.role, context.name(),
                          load_role_model(context, /*world=*/nullptr, device_of(rank.world.get())));
  return rank;
}

ServingRank make_generator(const RankContext& context) {
  const RoleOptions& role = context.role_options();
  ServingRank rank{.world = make_replica_world(context)};
  models::Decoder decoder =
      load_role_model(context, replica_of(context, rank), device_of(rank.world.get()));
  // A new adapter changes nothing until the student's factors come.
  if (recipes::pushes_adapter(context.recipe))
    models::attach_new_adapter(decoder, context.recipe.student().lora->config(), /*seed=*/0);
  const models::Tokenizer tokenizer = models::Tokenizer::load(role.model);
  auto engine = std::make_unique<roles::ReplicaEngine>(std::move(decoder), tokenizer,
                                                       context.recipe.generation->engine(),
                                                       recipes::base_weights(context.recipe, role));
  rank.role = std::make_unique<roles::Generator>(
      context.name(), with_episodes(context, rank, tokenizer, std::move(engine)));
  return rank;
}

}  // namespace retort::launch
