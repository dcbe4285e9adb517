// retort cache: what it takes; what it does stands in launch.h.
#include "launch/commands/command_line.h"
#include "launch/commands/launch.h"

namespace retort::launch {

void add_cache(Command program) {
  Command c = program.command(
      "cache", "keep what the teacher of a distillation says of each row, for many students");
  LaunchCommand& o = c.runs(run_cache, OnSignal::kEndsInOrder);
  c.option("recipe", o.recipe, "recipe file (YAML)").required();
  c.option("overrides", o.overrides, "key.path=value ...");
  c.option("--output", o.cache, "folder to write, or to go on with").required();
}

}  // namespace retort::launch
