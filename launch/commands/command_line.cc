#include "launch/commands/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/options.h"

namespace retort::launch {

Argument Argument::required() {
  option_->required();
  return *this;
}

Argument Argument::shows_default() {
  option_->capture_default_str();
  return *this;
}

Argument Argument::needs(Argument other) {
  option_->needs(other.option_);
  return *this;
}

Argument Argument::excludes(Argument other) {
  option_->excludes(other.option_);
  return *this;
}

Argument Argument::takes_one() {
  option_->allow_extra_args(false);
  return *this;
}

Argument Argument::unlisted() {
  option_->group("");
  return *this;
}

Command Command::command(const std::string& name, const std::string& help) {
  return {app_->add_subcommand(name, help), chosen_};
}

Command Command::group(const std::string& name, const std::string& help) {
  Command group = command(name, help);
  group.app_->require_subcommand(1);
  return group;
}

Command Command::unlisted() {
  app_->group("");
  return *this;
}

void Command::needs_any() { app_->require_option(1, 0); }

void Command::runs(std::function<int()> action, OnSignal on_signal) {
  app_->callback([chosen = chosen_, action = std::move(action), on_signal] {
    *chosen = {.action = action, .on_signal = on_signal};
  });
}

Argument Command::option(const std::string& name, std::string& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, std::optional<std::string>& value,
                         const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, std::vector<std::string>& value,
                         const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, int& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, int64_t& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, std::optional<int64_t>& value,
                         const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, uint64_t& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, double& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::option(const std::string& name, bool& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::flag(const std::string& name, bool& value, const std::string& help) {
  return Argument(app_->add_flag(name, value, help));
}

CommandLine::CommandLine(const std::string& name, const std::string& purpose,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(purpose, name)) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
}

CommandLine::~CommandLine() = default;

Command CommandLine::program() { return {app_.get(), &chosen_}; }

std::optional<int> CommandLine::read(int argc, char** argv) {
  if (argc > 1 && !is_command(argv[1])) return 2;
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app_->exit(e);
    return code == 0 ? 0 : 2;
  }
  RETORT_CHECK(chosen_.action) << "a subcommand without an action";
  return std::nullopt;
}

int CommandLine::run() const { return chosen_.action(); }

// Whether a command line may begin with `word`; if not, standard error says what is near to it.
bool CommandLine::is_command(const std::string& word) const {
  if (word.starts_with('-')) return true;
  std::vector<std::string> names;
  for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty() || command->get_name() == word)
      names.push_back(command->get_name());
  if (std::ranges::find(names, word) != names.end()) return true;

  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string near = word == "train" || word == "run" ? "launch" : nearest_name(word, views);
  std::fprintf(stderr, "error: retort has no command '%s'%s\nretort --help lists all\n",
               word.c_str(), near.empty() ? "" : ("; did you mean '" + near + "'?").c_str());
  return false;
}

}  // namespace retort::launch
