// What the ranks of one start of a run are started with, whoever starts them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/process/child_context.h"
#include "launch/run_folder/run_folder.h"
#include "launch/supervision/supervisor.h"
#include "recipes/document/recipe.h"
#include "rpc/options.h"

namespace retort::launch {

// What the processes of one start have in common.
struct RunStart {
  std::string run;
  std::string secret;
  int64_t incarnation = 0;
  bool resume = false;
  bool writes_cache = false;
  std::string store_host;
  uint16_t store_port = 0;
  rpc::Encryption encryption = rpc::Encryption::kAuto;
};

// What one rank is started with, but for what its role's processes do not share: threads.
ChildContext rank_context_of(const recipes::Recipe& recipe, const RunStart& start,
                             const std::string& role, int64_t rank);
// A child of this process for one rank: what it is called and told, and what is done when it is
// lost.
ProcessSpec child_spec(const recipes::Recipe& recipe, const RunFolder& folder,
                       ChildContext context);
// The arguments of `retort role` for it.
std::vector<std::string> role_arguments(const ChildContext& context,
                                        const std::filesystem::path& run_folder);

}  // namespace retort::launch
