// retort audit: samples as the trainer sees them.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "launch/commands/command_line.h"
#include "launch/document/recipe_file.h"
#include "recipes/audit/audit.h"
#include "recipes/type/registry.h"

namespace retort::launch {
namespace {

struct AuditCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  int64_t samples = 4;
};

int run_audit(const AuditCommand& command) {
  const recipes::Recipe recipe =
      load_recipe(command.recipe, command.overrides, {.cuda = true, .env_values = false});
  const data::RowFindings found = recipes::look_at_rows(recipe);
  std::printf("--- data: %s, %lld bad\n", found.text().c_str(),
              static_cast<long long>(found.bad.count()));
  recipes::print_unheard_end(recipe, found);
  recipes::recipe_type(recipe).audit(recipe, command.samples);
  return 0;
}

}  // namespace

void add_audit(Command program) {
  Command c = program.command(
      "audit", "show samples as the trainer sees them: coloured target mask, packing, counts");
  AuditCommand& o = c.runs(run_audit);
  c.option("recipe", o.recipe, "recipe file (YAML)").required();
  c.option("overrides", o.overrides, "key.path=value ...");
  c.option("--samples", o.samples, "samples to print").shows_default();
}

}  // namespace retort::launch
