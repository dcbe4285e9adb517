#include "launch/backends/start_processes.h"

#include <utility>

#include "launch/placement/placement.h"
#include "launch/process/child_process.h"

namespace retort::launch {

std::vector<ProcessSpec> placed_processes(const recipes::Recipe& recipe, const RunFolder& folder,
                                          const RunStart& start, const StartProcesses& where) {
  const int64_t processes = recipe.num_processes();
  std::vector<ProcessSpec> specs;
  for (const auto& [name, role] : recipe.roles) {
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank) {
      // Every rank of every role is taken to be on this host, and its cores and devices are shared
      // out over all of them. `where` says otherwise for a rank that it places elsewhere.
      ChildContext context = rank_context_of(recipe, start, name, rank);
      context.threads = threads_per_process(role.world.threads, processes);
      context.ranks_on_host = all_ranks(recipe);
      ProcessSpec spec = child_spec(recipe, folder, std::move(context));
      where.place(spec);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

}  // namespace retort::launch
