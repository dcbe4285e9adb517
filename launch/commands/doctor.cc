// retort doctor: whether this host, and those of a recipe, will do for a run.
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/host_name.h"
#include "launch/commands/command_line.h"
#include "launch/doctor/checks.h"
#include "launch/doctor/other_hosts.h"
#include "launch/document/recipe_file.h"
#include "launch/placement/placement.h"
#include "launch/process/signal_catcher.h"
#include "rpc/listen_address.h"

namespace retort::launch {
namespace {

struct DoctorCommand {
  std::string recipe;  // "": only what holds of any run on this host
  std::vector<std::string> overrides;
  bool json = false;
};

using doctor::Finding;
using doctor::HostShare;

// The launcher's host, on which all processes are unless the recipe has hosts.
HostShare share_of_launcher(const recipes::Recipe& recipe) {
  HostShare share{.recipe = &recipe, .ranks = {}, .bind = recipe.rpc.bind};
  if (recipe.launch.backend == recipes::Backend::kLocal) share.ranks = all_ranks(recipe);
  if (recipe.launch.rendezvous.address) share.rendezvous = *recipe.launch.rendezvous.address;
  return share;
}

// As store_bind has it (launch/ssh/run_hosts.h): where the recipe does not say where the run
// meets, it meets where its processes listen, or where hosts reach this one.
void settle_rendezvous(HostShare& share, const std::optional<std::string>& launcher_address) {
  if (share.recipe->launch.rendezvous.address) return;
  if (share.bind != rpc::RpcOptions().bind)
    share.rendezvous = rpc::listen_address(share.bind, share.rendezvous, 0);
  else if (launcher_address)
    share.rendezvous = *launcher_address;
}

std::vector<Finding> examine_run(const recipes::Recipe& recipe) {
  doctor::OtherHosts others;
  if (recipe.launch.backend == recipes::Backend::kSsh) {
    // A signal must not leave behind what is written to the run's folder for hosts to read.
    const SignalCatcher signals({SIGINT, SIGTERM, SIGHUP});
    others = doctor::examine_hosts(recipe, signals);
  }
  HostShare share = share_of_launcher(recipe);
  try {
    settle_rendezvous(share, others.launcher_address);
  } catch (const Error&) {
    // The check of the address says what is wrong.
  }
  std::vector<Finding> findings = examine(share, host_name());
  findings.insert(findings.end(), others.findings.begin(), others.findings.end());
  return findings;
}

int run_doctor(const DoctorCommand& command) {
  std::vector<Finding> findings;
  if (command.recipe.empty())
    findings = doctor::examine(HostShare{}, host_name());
  else
    findings = examine_run(load_recipe(command.recipe, command.overrides,
                                       {.cuda = true, .check_files = false, .env_values = false}));

  const std::string text =
      command.json ? doctor::to_json(findings) + "\n" : doctor::to_text(findings);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return doctor::count_of(findings, doctor::Verdict::kProblem) > 0 ? 1 : 0;
}

}  // namespace

void add_doctor(Command program) {
  Command c = program.command(
      "doctor", "whether this host, and those of a recipe, will do; what is wrong, what to do");
  DoctorCommand& o = c.runs(run_doctor);
  c.option("recipe", o.recipe, "recipe file (YAML); none: what holds of any run");
  c.option("overrides", o.overrides, "key.path=value ...");
  c.flag("--json", o.json);
}

}  // namespace retort::launch
