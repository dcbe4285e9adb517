// How a rank of the student reaches the other roles of its run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "recipes/run/recipe_run.h"
#include "roles/payload/payload.h"
#include "roles/teacher/client.h"

namespace retort::recipes {

// Waits until every rank of a role has published its address and connects to it; their names, in
// the order of ranks. Waits at most rpc.timeout.
std::vector<std::string> connect_role(RunContext& context, const std::string& role);

// How a frozen role is asked.
struct FrozenRoleOptions {
  bool weights_fingerprint = false;
  // the ranks that need every answer together, each a part of it; null: this rank asks alone
  parallel::Group* tp = nullptr;
};

// A client of a frozen role, after the handshake with all its replicas.
std::unique_ptr<roles::TeacherClient> connect_frozen_role(RunContext& context,
                                                          const std::string& role,
                                                          const roles::PayloadSpec& spec,
                                                          const FrozenRoleOptions& options = {});

}  // namespace retort::recipes
