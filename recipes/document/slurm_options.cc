#include "recipes/document/slurm_options.h"

#include <array>
#include <string_view>

#include "recipes/document/refuse.h"

namespace retort::recipes {
namespace {

void check_slurm_word(const char* key, const std::optional<std::string>& word) {
  if (word && (word->empty() || word->find_first_of(" \t\r\n") != std::string::npos))
    refuse_option(std::string(key) + " is '" + *word + "'; expected one word");
}

// Options that the batch script gives itself: its processes, its log, how it is stopped and goes
// on.
constexpr std::array<std::string_view, 21> kOwn{
    "-n",       "--ntasks",   "-o",           "--output", "-e",      "--error", "--open-mode",
    "--signal", "--requeue",  "--no-requeue", "-D",       "--chdir", "-a",      "--array",
    "--wrap",   "--parsable", "-W",           "--wait",   "-H",      "--hold",  "--test-only"};
// Options that have a key of their own in the recipe.
constexpr std::array<std::array<std::string_view, 3>, 4> kKeys{{{"-p", "--partition", "partition"},
                                                                {"-A", "--account", "account"},
                                                                {"-t", "--time", "time"},
                                                                {"--gres", "--gres", "gres"}}};

// "--output=x" and "-ox" are the option of that name.
bool is_option(std::string_view argument, std::string_view option) {
  if (!argument.starts_with(option)) return false;
  const bool is_long = option.starts_with("--");
  return !is_long || argument.size() == option.size() || argument[option.size()] == '=';
}

void check_argument(const std::string& argument) {
  if (!argument.starts_with('-') || argument.find_first_of("\r\n") != std::string::npos)
    refuse_option("args: '" + argument +
                  "': expected an option of sbatch with its value in one word, e.g. --qos=high");
  for (const std::string_view option : kOwn)
    if (is_option(argument, option))
      refuse_option("args: " + argument + " is what the batch script says itself; remove it");
  for (const auto& [small, large, key] : kKeys)
    if (is_option(argument, small) || is_option(argument, large))
      refuse_option("args: " + argument + ": write launch.slurm." + std::string(key));
}

}  // namespace

void SlurmOptions::validate() const {
  check_slurm_word("partition", partition);
  check_slurm_word("account", account);
  check_slurm_word("time", time);
  check_slurm_word("gres", gres);
  for (const std::string& argument : args)
    check_argument(argument);
}

}  // namespace retort::recipes
