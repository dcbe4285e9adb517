#include "launch/join/keeper.h"

#include <iostream>

#include "base/hash.h"
#include "base/process_name.h"
#include "launch/yaml/resolved_yaml.h"

namespace retort::launch {
namespace {

// Every process of the run but `own`, in the order of global ranks.
std::vector<std::string> others_of(const recipes::Recipe& recipe, const std::string& own) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& role) {
    for (int64_t rank = 0; rank < recipe.roles.at(role).world.world_size(); ++rank)
      if (const std::string name = process_name(role, rank); name != own) names.push_back(name);
  };
  add(recipes::Recipe::kDrivingRole);
  for (const auto& [role, options] : recipe.roles)
    if (role != recipes::Recipe::kDrivingRole) add(role);
  return names;
}

}  // namespace

std::string recipe_digest(recipes::Recipe recipe) {
  recipe.output_dir.clear();
  return sha256_hex(resolved_yaml(recipe)).substr(0, 16);
}

std::vector<ProcessSpec> Keeper::processes(const RunFolder& folder, const RunStart& start) {
  const recipes::Recipe& recipe = options_.recipe;
  // The store has its port by now, and the meeting is held there.
  MeetingAccess access = options_.access;
  access.host = start.store_host;
  access.port = start.store_port;
  host_.emplace(access, MeetingStart{.digest = recipe_digest(recipe),
                                     .mode = options_.mode,
                                     .recipe = resolved_yaml(recipe),
                                     .load_timeout = recipe.launch.load_timeout,
                                     .has_launcher = options_.own_rank.empty()});

  const std::vector<std::string> names = others_of(recipe, options_.own_rank);
  if (!names.empty())
    std::cerr << "note: waiting at " << access.host << ":" << start.store_port << " for "
              << names.size() << (options_.own_rank.empty() ? "" : " other")
              << " processes, at most " << format_duration(recipe.launch.load_timeout) << std::endl;
  std::vector<Member> members =
      host_->wait_for(names, recipe.launch.load_timeout, options_.is_stopping, options_.check);
  if (!options_.own_rank.empty()) members.push_back(own_member(options_.own_rank));
  return specs(folder, start, members);
}

std::vector<ProcessSpec> Keeper::specs(const RunFolder& folder, const RunStart& start,
                                       const std::vector<Member>& members) {
  const recipes::Recipe& recipe = options_.recipe;
  const auto cores = share_cores(members);
  std::vector<ProcessSpec> specs;
  for (const Member& member : members) {
    const auto [role, rank] = role_and_rank(member.name);
    ChildContext context = rank_context_of(recipe, start, role, rank);
    const int64_t wanted = recipe.roles.at(role).world.threads;
    context.threads = wanted > 0 ? wanted : cores.at(member.name);
    if (member.name == options_.own_rank) context.advertise = options_.advertise;

    ProcessSpec spec = child_spec(recipe, folder, std::move(context));
    // Whoever started it may start the run again; nobody here can.
    if (member.name != options_.own_rank) {
      spec.restarts = 0;
      spec.host = member.host;
      spec.joined = JoinedSpec{.pid = static_cast<pid_t>(member.pid),
                               .tell = [this](const ChildContext& told) { host_->tell(told); }};
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace retort::launch
