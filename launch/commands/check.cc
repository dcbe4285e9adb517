// retort check: the recipe's own self-checks.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/commands/command_line.h"
#include "launch/document/recipe_file.h"
#include "launch/links/measure_links.h"
#include "launch/process/signal_catcher.h"
#include "models/checkpoint/adapter.h"
#include "models/decoder/merged_weights.h"
#include "models/loaded_model.h"
#include "recipes/audit/audit.h"
#include "recipes/rules/models.h"
#include "recipes/run/inputs/answer_end.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/inputs/student_model.h"
#include "recipes/type/registry.h"

namespace retort::launch {
namespace {

struct CheckCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool links = false;  // those between hosts are measured, too
};

bool has_failed(const links::MeasuredLink& link) {
  return !link.encrypted.error.empty() || !link.plain.error.empty();
}

void check_links(const recipes::Recipe& recipe) {
  // A signal must not leave behind what is started on hosts.
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});
  const links::MeasuredLinks measured = links::measure_links(recipe, signals);
  if (measured.links.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--links: this recipe has no role that the student talks with");
  std::fputs(link_table(measured).c_str(), stdout);
  std::fflush(stdout);
  if (std::ranges::any_of(measured.links, has_failed))
    throw Error(
        ErrorCode::kUnavailable,
        "a connection that the run needs, or one like it, cannot be had; the table says why");
}

// Loads the student in float32, with the head that it is trained with and with what an adapter adds
// that training starts from. It comes without its chat template, which the recipe may replace.
models::LoadedModel load_checked_student(const recipes::Recipe& recipe) {
  const std::string& folder = recipe.student().model;
  const auto classifier = recipes::student_classifier(recipe);
  if (!classifier) {
    models::LoadedModel student = models::load_model_without_chat(folder, "float32");
    const auto& lora = recipe.student().lora;
    if (!lora || !lora->adapter) return student;
    models::attach_adapter(student.decoder, *lora->adapter);
    models::merge_adapter(student.decoder);
    return student;
  }

  models::LoadedModel student{.decoder = models::load_classifier(folder, at::kFloat, *classifier),
                              .tokenizer = models::Tokenizer::load(folder),
                              .chat = {},
                              .eos_token_ids = {}};
  if (const auto& lora = recipe.student().lora; lora && lora->adapter) {
    models::attach_adapter(student.decoder, *lora->adapter);
    models::merge_adapter(student.decoder);
  }
  student.decoder.set_requires_grad(false);
  return student;
}

int run_check(const CheckCommand& command) {
  std::vector<std::string> warnings;
  const recipes::Recipe recipe = load_recipe(command.recipe, command.overrides,
                                             {.cuda = true, .env_values = false}, &warnings);
  recipes::check_models(recipe);
  const data::RowFindings found = recipes::look_at_rows(recipe);
  models::LoadedModel student = load_checked_student(recipe);
  student.chat = recipes::load_chat(recipe);
  const std::string chat = student.chat.description();
  const auto warning =
      recipes::unheard_end(recipe, student.chat, student.tokenizer, found.has_messages);
  recipes::SelfCheck check(std::move(student));
  check.check("data", true, found.text() + ", " + std::to_string(found.bad.count()) + " bad");
  for (const std::string& said : warnings)
    check.warn("recipe", said);
  check.check("chat template", true, chat);
  if (warning) check.warn("chat template", *warning);
  recipes::recipe_type(recipe).self_check(recipe, check);
  if (command.links) check_links(recipe);
  std::printf("all checks passed\n");
  return 0;
}

}  // namespace

void add_check(Command program) {
  Command c = program.command(
      "check", "self-checks before money is spent; non-zero on the first that fails");
  CheckCommand& o = c.runs(run_check);
  c.option("recipe", o.recipe, "recipe file (YAML)").required();
  c.option("overrides", o.overrides, "key.path=value ...");
  c.flag("--links", o.links,
         "also measure the connections between roles, where the recipe places them");
}

}  // namespace retort::launch
