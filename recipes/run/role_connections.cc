#include "recipes/run/role_connections.h"

#include <algorithm>
#include <chrono>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process_name.h"
#include "recipes/external_roles.h"
#include "recipes/run/agent_options.h"

namespace retort::recipes {
namespace {

constexpr std::chrono::milliseconds kStopLook{500};

// Where a peer says where it is.
parallel::StoreClient store_of(const RankContext& context, const std::string& peer) {
  return {context.store_host, context.store_port, context.store_prefix(role_and_rank(peer).first),
          context.recipe.rpc.timeout, context.connect_store};
}
std::string address_key(const std::string& peer) {
  return "address/" + std::to_string(role_and_rank(peer).second);
}

// Until the peer has said where it is: a role loads for as long as its model takes. Nothing is
// lost by a stop before that.
void wait_for_address(const RankContext& context, const std::string& peer, Deadline deadline) {
  parallel::StoreClient store = store_of(context, peer);
  for (;;) {
    const Deadline look(std::min(Deadline::after(kStopLook).time(), deadline.time()));
    try {
      store.get(address_key(peer), look);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout || deadline.expired()) throw;
    }
    if (context.stop_requested())
      throw Error(ErrorCode::kCancelled, "stopped while it waited for " + peer);
  }
}

// Waits for one rank of a role and connects to it; its name.
std::string connect_rank(RunContext& context, const std::string& role, int64_t rank,
                         Deadline deadline) {
  const std::string peer = process_name(role, rank);
  context.rank.report("waiting", 0, "for " + peer);
  wait_for_address(context.rank, peer, deadline);
  context.links.keep(peer, deadline);
  return peer;
}

// Leader and last stage of each replica.
std::vector<roles::TeacherReplica> connect_replicas(RunContext& context, const std::string& role) {
  const parallel::Layout& layout = context.recipe().roles.at(role).world;
  const Deadline deadline = Deadline::after(load_timeout_of(context.recipe(), role));
  std::vector<roles::TeacherReplica> replicas;
  for (int64_t dp = 0; dp < layout.dp; ++dp) {
    const int64_t leader = parallel::rank_of(layout, {.tp = 0, .dp = dp, .pp = 0});
    roles::TeacherReplica replica{.leader = connect_rank(context, role, leader, deadline),
                                  .holders = {}};
    for (int64_t tp = 0; tp < layout.tp; ++tp) {
      const int64_t holder = parallel::rank_of(layout, {.tp = tp, .dp = dp, .pp = layout.pp - 1});
      replica.holders.push_back(holder == leader ? replica.leader
                                                 : connect_rank(context, role, holder, deadline));
    }
    replicas.push_back(std::move(replica));
  }
  return replicas;
}

roles::FrozenReplicas::Options replica_options(RunContext& context, const std::string& role) {
  const Recipe& recipe = context.recipe();
  return {.role = role,
          .replicas = connect_replicas(context, role),
          .timeout = recipe.rpc.timeout,
          .links = links_to(context, role),
          .patience = load_timeout_of(recipe, role)};
}

}  // namespace

std::string find_peer(const RankContext& context, const std::string& peer, Deadline deadline) {
  return store_of(context, peer).get(address_key(peer), deadline);
}

rpc::PeerLinks* links_to(RunContext& context, const std::string& role) {
  return context.recipe().roles.at(role).restarts > 0 ? &context.links : nullptr;
}

std::vector<std::string> connect_role(RunContext& context, const std::string& role) {
  const Deadline deadline = Deadline::after(load_timeout_of(context.recipe(), role));
  std::vector<std::string> peers;
  for (int64_t rank = 0; rank < context.recipe().roles.at(role).world.world_size(); ++rank)
    peers.push_back(connect_rank(context, role, rank, deadline));
  return peers;
}

std::unique_ptr<roles::TeacherClient> connect_frozen_role(RunContext& context,
                                                          const std::string& role,
                                                          const roles::PayloadSpec& spec,
                                                          const FrozenRoleOptions& options) {
  std::optional<at::Device> device;
  if (has_device_map(context.recipe(), role)) device = context.world.device();
  return std::make_unique<roles::TeacherClient>(
      context.agent,
      roles::TeacherClient::Options{.role = role,
                                    .replicas = connect_replicas(context, role),
                                    .spec = spec,
                                    .timeout = context.recipe().rpc.timeout,
                                    .links = links_to(context, role),
                                    .patience = load_timeout_of(context.recipe(), role),
                                    .student_vocab_rows = context.vocab_rows,
                                    .weights_fingerprint = options.weights_fingerprint,
                                    .tp = options.tp,
                                    .device = device},
      context.tokenizer);
}

std::unique_ptr<roles::RewardClient> connect_reward_role(RunContext& context,
                                                         const std::string& role) {
  roles::FrozenReplicas::Options options = replica_options(context, role);
  options.why_same_ids =
      "completions are scored as the ids that were drawn, so serve a model with the student's "
      "tokenizer";
  return std::make_unique<roles::RewardClient>(context.agent, std::move(options),
                                               context.tokenizer);
}

std::unique_ptr<roles::JudgeClient> connect_judge_role(RunContext& context,
                                                       const std::string& role) {
  return std::make_unique<roles::JudgeClient>(context.agent, replica_options(context, role));
}

}  // namespace retort::recipes
