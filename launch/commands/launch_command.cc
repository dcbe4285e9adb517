// retort launch: what it takes; what it does stands in launch.h and attach.h.
#include <string>

#include "launch/commands/attach.h"
#include "launch/commands/command_line.h"
#include "launch/commands/launch.h"

namespace retort::launch {
namespace {

struct LaunchArguments {
  LaunchCommand run;
  std::string attached_run;  // the folder of one that there is; "": `run`
};

int launch_or_attach(const LaunchArguments& arguments) {
  return arguments.attached_run.empty() ? run_launch(arguments.run)
                                        : run_attach(arguments.attached_run);
}

}  // namespace

void add_launch(Command program) {
  Command c = program.command(
      "launch", "run a recipe: start all role processes, show progress, exit when it is done");
  LaunchArguments& o = c.runs(launch_or_attach, OnSignal::kEndsInOrder);
  const Argument recipe = c.option("recipe", o.run.recipe, "recipe file (YAML)");
  c.option("overrides", o.run.overrides, "key.path=value ...");
  const Argument resume =
      c.flag("--resume", o.run.resume, "continue the run in output_dir from its newest checkpoint");
  const Argument overwrite =
      c.flag("--overwrite", o.run.overwrite, "delete what is in output_dir first").excludes(resume);
  const Argument submit = c.flag(
      "--submit", o.run.submit, "as a job of Slurm (launch.backend: slurm), which starts it later");

  // Said by the script of such a job, not by people.
  c.flag("--submitted", o.run.submitted).unlisted().excludes(submit);

  Argument attach = c.option("--attach", o.attached_run,
                             "take over the run in this folder, whose launcher is gone");
  for (const Argument other : {recipe, resume, overwrite, submit})
    attach.excludes(other);
  c.flag("--dry-run", o.run.dry_run, "print what to apply with backend: kubernetes")
      .needs(recipe)
      .excludes(submit);
  c.needs_any();
}

}  // namespace retort::launch
