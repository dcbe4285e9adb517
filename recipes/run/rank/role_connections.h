// How a rank reaches other roles of its run: those of the student all of them, others by links of
// their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "recipes/run/rank/recipe_run.h"
#include "roles/payload/payload.h"
#include "roles/reward/client.h"
#include "roles/reward/judge_client.h"
#include "roles/teacher/client.h"

namespace retort::recipes {

// Where a process that serves is now, "host:port": what it published last. Waits until it has, or
// the deadline (kTimeout).
std::string find_peer(const RankContext& context, const std::string& peer, Deadline deadline);

// What a client of a role connects again with; null where a lost replica ends the run.
rpc::PeerLinks* links_to(RunContext& context, const std::string& role);

// Waits until every rank of a role has published its address and connects to them, many at a time;
// their names, in the order of ranks. All of it within launch.load_timeout. The store is asked for
// all addresses at once, so its requests do not grow with the role.
std::vector<std::string> connect_role(RunContext& context, const std::string& role);
// The same for a rank of whichever role, over links of its own.
std::vector<std::string> connect_role(const RankContext& context, rpc::PeerLinks& links,
                                      const std::string& role);

// How a frozen role is asked.
struct FrozenRoleOptions {
  bool weights_fingerprint = false;
  // the ranks that need every answer together, each a part of it; null: this rank asks alone
  parallel::Group* tp = nullptr;
  // those that compare with the same rows of its head, and all connect now; null: this rank alone
  parallel::Group* same_rows = nullptr;
  // The tokenizer in whose ids the role is asked, which must be its own, and the rows of a head for
  // them; null: the student's.
  const models::Tokenizer* tokenizer = nullptr;
  int64_t vocab_rows = 0;
};

// A client of a frozen role, after the handshake with all its replicas.
std::unique_ptr<roles::TeacherClient> connect_frozen_role(RunContext& context,
                                                          const std::string& role,
                                                          const roles::PayloadSpec& spec,
                                                          const FrozenRoleOptions& options = {});

// A client of a role that scores completions, after the handshake with all its replicas.
std::unique_ptr<roles::RewardClient> connect_reward_role(RunContext& context,
                                                         const std::string& role);

// A client of a role that is asked in words, likewise.
std::unique_ptr<roles::JudgeClient> connect_judge_role(RunContext& context,
                                                       const std::string& role);

}  // namespace retort::recipes
