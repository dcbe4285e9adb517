#include "recipes/run/rank/role_connections.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process_name.h"
#include "base/sizes.h"
#include "recipes/roles/external_roles.h"
#include "recipes/run/rank/agent_options.h"

namespace retort::recipes {
namespace {

constexpr std::chrono::milliseconds kStopLook{500};
// So many keys are waited for at a time. The store keeps those of every rank that waits, and gets
// them anew with every look.
constexpr size_t kWaitAtOnce = 64;

// The ranks of a role say in this store where they are. A store that is gone may be elsewhere soon,
// so nobody dials it for longer than the deadline.
parallel::StoreClient store_of(const RankContext& context, const std::string& role,
                               Deadline deadline) {
  const Duration timeout = std::min(context.recipe.rpc.timeout, deadline.remaining());
  return {context.store_host, context.store_port, context.store_prefix(role),
          std::max(timeout, Duration(1)), context.connect_store};
}
std::string address_key(int64_t rank) { return "address/" + std::to_string(rank); }

// "teacher/0 and 3 more"
std::string names_of(const std::string& role, const std::vector<int64_t>& ranks) {
  const std::string first = process_name(role, ranks.front());
  return ranks.size() == 1 ? first : first + " and " + std::to_string(ranks.size() - 1) + " more";
}

// Waits until all of these ranks have said where they are: a role loads for as long as its model
// takes. The wait is made of short looks, because a stop before its end loses nothing.
std::vector<std::string> wait_for_addresses(const RankContext& context, const std::string& role,
                                            const std::vector<int64_t>& ranks, Deadline deadline) {
  parallel::StoreClient store = store_of(context, role, deadline);
  std::vector<std::string> keys;
  std::vector<std::string> next;  // that are waited for
  const auto wait_for_next = [&] {
    while (!next.empty()) {
      const Deadline look(std::min(Deadline::after(kStopLook).time(), deadline.time()));
      try {
        store.wait_all(next, look);
        return next.clear();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kTimeout || deadline.expired()) throw;
      }
      if (context.stop_requested())
        throw Error(ErrorCode::kCancelled, "stopped while it waited for " + names_of(role, ranks));
    }
  };

  for (const int64_t rank : ranks) {
    keys.push_back(address_key(rank));
    next.push_back(keys.back());
    if (next.size() == kWaitAtOnce) wait_for_next();
  }
  wait_for_next();
  return store.get_all(keys, deadline);
}

// Waits for these ranks of a role and connects to them, many at a time; returns their names. One
// deadline holds for all of it.
std::vector<std::string> connect_ranks(const RankContext& context, rpc::PeerLinks& links,
                                       const std::string& role, const std::vector<int64_t>& ranks) {
  const Deadline deadline = Deadline::after(load_timeout_of(context.recipe, role));
  context.report("waiting", 0, "for " + names_of(role, ranks));
  const std::vector<std::string> addresses = wait_for_addresses(context, role, ranks, deadline);

  std::vector<std::string> peers;
  std::vector<rpc::PeerLinks::Place> places;
  for (size_t i = 0; i < ranks.size(); ++i) {
    peers.push_back(process_name(role, ranks[i]));
    places.push_back({.peer = peers.back(), .address = addresses[i]});
  }
  links.keep_all(std::move(places), deadline);
  return peers;
}

// Connects to the leader of each replica, which is asked, and to the ranks of its last stage, which
// hold the answers.
std::vector<roles::TeacherReplica> connect_replicas(RunContext& context, const std::string& role) {
  const parallel::Layout& layout = context.recipe().roles.at(role).world;
  std::vector<int64_t> ranks;
  // A rank may be a leader and a holder, but is connected to once.
  const auto name = [&](int64_t rank) {
    if (std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
    return process_name(role, rank);
  };

  std::vector<roles::TeacherReplica> replicas;
  for (int64_t dp = 0; dp < layout.dp; ++dp) {
    roles::TeacherReplica replica{
        .leader = name(parallel::rank_of(layout, {.tp = 0, .dp = dp, .pp = 0})), .holders = {}};
    for (int64_t tp = 0; tp < layout.tp; ++tp)
      replica.holders.push_back(
          name(parallel::rank_of(layout, {.tp = tp, .dp = dp, .pp = layout.pp - 1})));
    replicas.push_back(std::move(replica));
  }
  connect_ranks(context.rank, context.links, role, ranks);
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
  const auto [role, rank] = role_and_rank(peer);
  return store_of(context, role, deadline).get(address_key(rank), deadline);
}

rpc::PeerLinks* links_to(RunContext& context, const std::string& role) {
  return context.recipe().roles.at(role).restarts > 0 ? &context.links : nullptr;
}

std::vector<std::string> connect_role(RunContext& context, const std::string& role) {
  return connect_role(context.rank, context.links, role);
}

std::vector<std::string> connect_role(const RankContext& context, rpc::PeerLinks& links,
                                      const std::string& role) {
  std::vector<int64_t> ranks(to_size(context.recipe.roles.at(role).world.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return connect_ranks(context, links, role, ranks);
}

std::unique_ptr<roles::TeacherClient> connect_frozen_role(RunContext& context,
                                                          const std::string& role,
                                                          const roles::PayloadSpec& spec,
                                                          const FrozenRoleOptions& options) {
  std::optional<at::Device> device;
  if (has_device_map(context.recipe(), role)) device = context.world.device();
  return std::make_unique<roles::TeacherClient>(
      context.agent,
      roles::TeacherClient::Options{
          .role = role,
          .replicas = connect_replicas(context, role),
          .spec = spec,
          .timeout = context.recipe().rpc.timeout,
          .links = links_to(context, role),
          .patience = load_timeout_of(context.recipe(), role),
          .student_vocab_rows = options.tokenizer ? options.vocab_rows : context.vocab_rows,
          .weights_fingerprint = options.weights_fingerprint,
          .tp = options.tp,
          .same_rows = options.same_rows,
          .device = device},
      options.tokenizer ? *options.tokenizer : context.tokenizer);
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
