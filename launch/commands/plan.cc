// retort plan: what a recipe will start and what it will cost, from sizes alone.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/error.h"
#include "base/json_text.h"
#include "base/process_name.h"
#include "launch/backends/placement.h"
#include "launch/commands/commands.h"
#include "launch/commands/path_plan.h"
#include "launch/commands/role_plan.h"
#include "launch/commands/transfer_plan.h"
#include "launch/yaml/recipe_file.h"
#include "recipes/registry.h"
#include "recipes/rules/models.h"

namespace retort::launch {
namespace {

using recipes::LinkPlan;
using recipes::Recipe;

double mib(double bytes) { return bytes / 1048576.0; }
double mib(int64_t bytes) { return mib(static_cast<double>(bytes)); }

// What runs on one of launch.hosts.
struct HostPlan {
  std::string host;
  int64_t slots = 0;
  std::vector<std::string> processes;
};

std::vector<HostPlan> plan_hosts(const Recipe& recipe) {
  std::vector<HostPlan> hosts;
  for (const recipes::HostOptions& host : recipe.launch.hosts)
    hosts.push_back({.host = host.host, .slots = host.slots, .processes = {}});
  if (hosts.empty()) return hosts;
  const Placement placement = place_processes(recipe);
  for (const auto& [name, role] : recipe.roles)
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank)
      hosts[placement.host_of(name, rank)].processes.push_back(process_name(name, rank));
  return hosts;
}

struct Plan {
  std::vector<HostPlan> hosts;
  std::vector<RolePlan> roles;
  std::vector<LinkPlan> links;
  std::vector<recipes::CachePlan> caches;
  std::vector<TransferPlan> transfers;
  std::vector<PathPlan> paths;
  double tokens_per_step = 0;  // of all ranks, at most

  // The role with the most work per token and rank sets the pace when everything overlaps.
  const RolePlan& bottleneck() const {
    return *std::max_element(roles.begin(), roles.end(), [](const RolePlan& a, const RolePlan& b) {
      return a.flops_per_rank() < b.flops_per_rank();
    });
  }
};

Plan make_plan(const Recipe& recipe) {
  const recipes::RecipePlan own = recipes::recipe_type(recipe).plan(recipe);
  const std::vector<RolePlan> roles = plan_roles(recipe);
  return {.hosts = plan_hosts(recipe),
          .roles = roles,
          .links = own.links,
          .caches = own.caches,
          .transfers = plan_transfers(recipe, roles, own.links),
          .paths = plan_paths(recipe),
          .tokens_per_step = recipes::tokens_per_step(recipe, own.sequences_per_row)};
}

void print_roles(const Plan& plan) {
  std::printf("%-12s %6s %12s %12s %12s %12s %12s %12s %12s %12s %12s  model\n", "role", "ranks",
              "parameters", "weights MiB", "grads MiB", "optim MiB", "answers MiB", "kept MiB",
              "pushed MiB", "cache MiB", "peak MiB");
  for (const RolePlan& role : plan.roles)
    std::printf(
        "%-12s %6lld %12lld %12.1f %12.1f %12.1f %12.1f %12.1f %12.1f %12.1f %11.1f%s  %s\n",
        role.name.c_str(), static_cast<long long>(role.ranks),
        static_cast<long long>(role.parameters), mib(role.memory.parameters),
        mib(role.memory.gradients), mib(role.memory.optimizer), mib(role.memory.answers),
        mib(role.memory.activations), mib(role.pushed_weights), mib(role.kv_cache),
        mib(role.peak()), role.measured ? " " : "*", role.model.c_str());
  std::printf(
      "MiB: of the rank that needs most; answers: teachers' heads, and payloads that have arrived, "
      "and in a teacher hidden states that wait for ids of the student's; "
      "kept: activations between forward and backward; pushed: "
      "a copy of the weights that were pushed last, while the generator may be started again (with "
      "device: cuda in the host's memory, which is not in the peak), and in the generator of those "
      "that arrive; cache: generation.kv_cache; peak: of tensors in a step (a "
      "frozen role: its weights and what one micro-batch takes; a generator: its weights, pushed "
      "and cache)\n");
  if (std::any_of(plan.roles.begin(), plan.roles.end(),
                  [](const RolePlan& role) { return !role.measured; }))
    std::printf(
        "*: on a device, by formula alone; on the CPU the formulas are within 10 %% of what "
        "was measured\n");
}

void print_devices(const Plan& plan) {
  bool any = false;
  for (const RolePlan& role : plan.roles)
    for (const DevicePlan& there : role.devices) {
      std::printf("devices of %s%s:", role.name.c_str(),
                  (there.host.empty() ? "" : " on " + there.host).c_str());
      for (const int64_t index : there.devices)
        std::printf(" %lld", static_cast<long long>(index));
      std::printf("%s\n", there.own ? " of its CUDA_VISIBLE_DEVICES" : "");
      any = true;
    }
  if (any)
    std::printf(
        "devices: on a host that has fewer, roles share them, as far as each rank of a "
        "role has one\n");
}

void print_transfers(const Plan& plan, double link_gbit) {
  if (plan.transfers.empty()) return;
  std::printf("between hosts, at %g Gbit/s a link (--link-gbit):\n", link_gbit);
  for (const TransferPlan& transfer : plan.transfers) {
    const std::string every = transfer.every_steps == 1
                                  ? "each step"
                                  : "each " + std::to_string(transfer.every_steps) + " steps";
    std::printf("  %-28s %12.2f MiB  %10.4f s  %s\n", transfer.what.c_str(), mib(transfer.bytes),
                transfer.seconds(link_gbit), every.c_str());
  }
}

void print_paths(const Plan& plan) {
  std::printf("paths, the same on all hosts of a line:\n");
  for (const PathPlan& path : plan.paths) {
    std::string hosts;
    for (const std::string& host : path.hosts)
      hosts += (hosts.empty() ? "" : " ") + host;
    if (path.hosts.empty()) hosts = path.role.empty() ? "all" : "those of " + path.role;
    std::printf("  %-28s %s: %s\n", path.key.c_str(), path.path.c_str(), hosts.c_str());
  }
}

void print_caches(const Plan& plan) {
  for (const LinkPlan& link : plan.links)
    if (link.may_be_kept())
      std::printf(
          "retort cache would keep of %s: %.0f bytes per target token, %.0f per row, %.2f MiB "
          "once\n",
          link.role.c_str(), link.bytes_per_token, link.cache_bytes_per_sequence,
          mib(link.cache_bytes_once));
  for (const recipes::CachePlan& cache : plan.caches)
    std::printf(
        "cache %s: %lld rows, %lld target tokens, %.2f MiB; %.0f bytes per target token, at most "
        "%.2f MiB read per step\n",
        cache.folder.c_str(), static_cast<long long>(cache.sequences),
        static_cast<long long>(cache.target_tokens), mib(cache.bytes), cache.bytes_per_token,
        mib(cache.bytes_per_step));
}

void print_link(const LinkPlan& link) {
  std::printf(
      "link %s -> student: %.0f bytes per target token, at most %.2f MiB per step; prefetch %lld "
      "holds at most %.2f MiB "
      "per student rank\n",
      link.role.c_str(), link.bytes_per_token, mib(link.bytes_per_step),
      static_cast<long long>(link.prefetch), mib(link.prefetch_bytes));
  if (link.named_bytes_per_token > 0)
    std::printf("link student -> %s: %.0f bytes per target token for the ids that it names\n",
                link.role.c_str(), link.named_bytes_per_token);
}

void print_text(const Plan& plan, double link_gbit, bool is_one_host) {
  print_roles(plan);
  for (const HostPlan& host : plan.hosts) {
    std::printf("host %s: %zu of %lld slots:", host.host.c_str(), host.processes.size(),
                static_cast<long long>(host.slots));
    for (const std::string& process : host.processes)
      std::printf(" %s", process.c_str());
    std::printf("\n");
  }
  print_devices(plan);
  std::printf("tokens per step: at most %.0f\n", plan.tokens_per_step);
  for (const LinkPlan& link : plan.links)
    print_link(link);
  print_caches(plan);
  print_transfers(plan, link_gbit);
  if (!is_one_host) print_paths(plan);
  std::printf("expected bottleneck: %s (%.3g FLOP per token and rank)\n",
              plan.bottleneck().name.c_str(), plan.bottleneck().flops_per_rank());
}

}  // namespace

std::string plan_json(const Recipe& recipe, double link_gbit) {
  const Plan plan = make_plan(recipe);
  const auto of_devices = [](const DevicePlan& there) {
    return JsonLine()
        .add("host", std::string_view(there.host))
        .raw("devices", json_array(there.devices, [](int64_t i) { return std::to_string(i); }))
        .str();
  };
  const auto of_role = [&](const RolePlan& role) {
    return JsonLine()
        .add("role", std::string_view(role.name))
        .add("ranks", role.ranks)
        .add("parameters", role.parameters)
        .add("weight_bytes_per_rank", role.memory.parameters)
        .add("gradient_bytes_per_rank", role.memory.gradients)
        .add("optimizer_bytes_per_rank", role.memory.optimizer)
        .add("answer_bytes_per_rank", role.memory.answers)
        .add("activation_bytes_per_rank", role.memory.activations)
        .add("pushed_weights_bytes_per_rank", role.pushed_weights)
        .add("kv_cache_bytes_per_rank", role.kv_cache)
        .add("peak_bytes_per_rank", role.peak())
        .add("measured", role.measured)
        .raw("devices", json_array(role.devices, of_devices))
        .str();
  };
  const auto of_link = [](const LinkPlan& link) {
    JsonLine line;
    line.add("teacher", std::string_view(link.role))
        .add("bytes_per_target_token", link.bytes_per_token)
        .add("max_bytes_per_step", link.bytes_per_step)
        .add("max_prefetch_bytes_per_rank", link.prefetch_bytes);
    if (link.named_bytes_per_token > 0)
      line.add("named_bytes_per_target_token", link.named_bytes_per_token);
    return line.str();
  };
  std::vector<LinkPlan> kept;  // by `retort cache`
  std::ranges::copy_if(plan.links, std::back_inserter(kept), &LinkPlan::may_be_kept);
  const auto of_kept = [](const LinkPlan& link) {
    return JsonLine()
        .add("teacher", std::string_view(link.role))
        .add("bytes_per_target_token", link.bytes_per_token)
        .add("bytes_per_sequence", link.cache_bytes_per_sequence)
        .add("bytes_once", link.cache_bytes_once)
        .str();
  };
  const auto of_cache = [](const recipes::CachePlan& cache) {
    return JsonLine()
        .add("folder", cache.folder)
        .add("sequences", cache.sequences)
        .add("target_tokens", cache.target_tokens)
        .add("bytes", cache.bytes)
        .add("bytes_per_target_token", cache.bytes_per_token)
        .add("max_bytes_per_step", cache.bytes_per_step)
        .str();
  };
  const auto of_host = [](const HostPlan& host) {
    return JsonLine()
        .add("host", std::string_view(host.host))
        .add("slots", host.slots)
        .raw("processes", json_array(host.processes, json_quote))
        .str();
  };

  const auto of_path = [](const PathPlan& path) {
    return JsonLine()
        .add("key", std::string_view(path.key))
        .add("path", std::string_view(path.path))
        .add("role", std::string_view(path.role))
        .raw("hosts", json_array(path.hosts, json_quote))
        .str();
  };
  const auto of_transfer = [&](const TransferPlan& transfer) {
    return JsonLine()
        .add("what", std::string_view(transfer.what))
        .add("bytes", transfer.bytes)
        .add("every_steps", transfer.every_steps)
        .add("seconds", transfer.seconds(link_gbit))
        .str();
  };

  return JsonLine()
      .raw("hosts", json_array(plan.hosts, of_host))
      .raw("roles", json_array(plan.roles, of_role))
      .raw("links", json_array(plan.links, of_link))
      .raw("may_be_cached", json_array(kept, of_kept))
      .raw("caches", json_array(plan.caches, of_cache))
      .add("link_gbit", link_gbit)
      .raw("transfers", json_array(plan.transfers, of_transfer))
      .raw("paths", json_array(plan.paths, of_path))
      .add("max_tokens_per_step", plan.tokens_per_step)
      .add("expected_bottleneck", std::string_view(plan.bottleneck().name))
      .str();
}

int run_plan(const RecipeCommand& command) {
  if (!(command.link_gbit > 0))
    throw Error(ErrorCode::kInvalidArgument, "--link-gbit must be above 0");
  const Recipe recipe =
      load_recipe(command.recipe, command.overrides, {.cuda = true, .env_values = false});
  recipes::check_models(recipe);
  if (command.json)
    std::printf("%s\n", plan_json(recipe, command.link_gbit).c_str());
  else
    print_text(make_plan(recipe), command.link_gbit,
               recipe.launch.backend == recipes::Backend::kLocal);
  return 0;
}

}  // namespace retort::launch
