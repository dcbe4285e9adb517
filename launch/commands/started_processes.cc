// retort role, host and link: what other processes of ours start, not people.
#include "launch/commands/command_line.h"
#include "launch/doctor/host_answer.h"
#include "launch/links/link_job.h"
#include "launch/links/link_process.h"
#include "launch/process/child_process.h"
#include "launch/ranks/rank_command.h"
#include "launch/ssh/host_loop.h"

namespace retort::launch {
namespace {

int run_started_role(const RoleCommand& command) {
  restore_library_path();
  return run_role(command);
}

// It answers the doctor of the launcher's host as that would ask itself.
int run_started_host() { return serve_as_host(doctor::answer_as_host); }

int run_started_link() {
  restore_library_path();
  return links::run_link_process();
}

}  // namespace

void add_role(Command program) {
  Command c = program.command("role", "one process of a run (started by launch)").unlisted();
  RoleCommand& o = c.runs(run_started_role, OnSignal::kEndsInOrder);
  c.option("--run", o.run).required();
  c.option("--role", o.role).required();
  c.option("--rank", o.rank).required();
  c.option("--run-folder", o.run_folder).required();
}

void add_host(Command program) {
  program
      .command("host",
               "the processes of a run on this host, for a launcher on another one (started by "
               "launch, by ssh)")
      .unlisted()
      .runs(run_started_host, OnSignal::kEndsInOrder);
}

void add_link(Command program) {
  program.command(links::kLinkRole, "one end of a connection that is measured (started by check)")
      .unlisted()
      .runs(run_started_link);
}

}  // namespace retort::launch
