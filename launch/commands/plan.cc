// retort plan: what a recipe will start and what it will cost, for people to read.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/commands/command_line.h"
#include "launch/document/recipe_file.h"
#include "launch/plan/plan.h"
#include "launch/plan/plan_json.h"
#include "recipes/document/recipe.h"
#include "recipes/rules/models.h"
#include "recipes/type/plan.h"

namespace retort::launch {
namespace {

using recipes::LinkPlan;

struct PlanCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
  double link_gbit = kUsualLinkGbit;  // of a host's link
};

double mib(double bytes) { return bytes / 1048576.0; }
double mib(int64_t bytes) { return mib(static_cast<double>(bytes)); }

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

// "device 0 of host-1 has student, teacher: they need 30000.0 MiB of it together".
void print_shared_devices(const Plan& plan) {
  for (const DeviceLoad& load : plan.shared_devices) {
    std::string roles;
    for (const std::string& role : load.roles)
      roles += (roles.empty() ? "" : ", ") + role;
    const std::string device =
        load.device ? "device " + std::to_string(*load.device) : "if one device";
    const std::string host = load.host.empty() ? "" : " of " + load.host;
    std::printf("%s%s has %s: they need %.1f MiB of it together\n", device.c_str(), host.c_str(),
                roles.c_str(), mib(load.bytes));
  }
  double beside = 0;
  for (const RolePlan& role : plan.roles)
    beside = std::max(beside, mib(role.beside_tensors));
  if (beside > 0)
    std::printf(
        "of a device each rank takes its peak, %.0f MiB for the driver's context, cuBLAS and NCCL, "
        "and what LibTorch's allocator keeps of freed memory; a limit for a role: docs/gpu.md\n",
        beside);
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
  print_shared_devices(plan);
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

int run_plan(const PlanCommand& command) {
  if (!(command.link_gbit > 0))
    throw Error(ErrorCode::kInvalidArgument, "--link-gbit must be above 0");
  const recipes::Recipe recipe =
      load_recipe(command.recipe, command.overrides, {.cuda = true, .env_values = false});
  recipes::check_models(recipe);
  const Plan plan = make_plan(recipe);
  if (command.json)
    std::printf("%s\n", plan_json(plan, command.link_gbit).c_str());
  else
    print_text(plan, command.link_gbit, recipe.launch.backend == recipes::Backend::kLocal);
  return 0;
}

}  // namespace

void add_plan(Command program) {
  Command c =
      program.command("plan", "roles, ranks, memory, bytes and seconds per step; starts nothing");
  PlanCommand& o = c.runs(run_plan);
  c.option("recipe", o.recipe, "recipe file (YAML)").required();
  c.option("overrides", o.overrides, "key.path=value ...");
  c.flag("--json", o.json);
  c.option("--link-gbit", o.link_gbit, "Gbit/s of a host's link, for the seconds").shows_default();
}

}  // namespace retort::launch
