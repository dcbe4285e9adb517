// The command line: which commands the program has, what each takes, and which one was given.
// CLI11 reads it, which costs seconds in each file that includes it: command_line.cc alone does.
//
// A command is one file, which ends with what it takes and is listed in main.cc:
//
//   void add_status(Command program) {
//     Command c = program.command("status", "what a run is doing: its state and its processes");
//     StatusCommand& o = c.runs(run_status);  // of int run_status(const StatusCommand&)
//     c.option("run", o.run, "the run's folder (output_dir)").required();
//     c.flag("--watch", o.watch, "again each second, until the run has ended");
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace retort::launch {

// A flag, an option ("--samples") or what stands by itself ("recipe"). To be copied: it names what
// the command line has. Each method returns it again.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument required();
  // The help says what the value is now.
  Argument shows_default();
  // It is refused without the other one, or with it.
  Argument needs(Argument other);
  Argument excludes(Argument other);
  // A list takes one value each time that it is given, and not all that follow.
  Argument takes_one();
  // The help does not list it.
  Argument unlisted();

 private:
  CLI::Option* option_;
};

// What SIGINT, SIGTERM and SIGHUP do to a command: they end it, or it takes them by a SignalCatcher
// and ends in good order.
enum class OnSignal { kIsEnded, kEndsInOrder };

// The program itself, a command of it, or a command's own. To be copied, as an Argument is.
class Command {
 public:
  // What the chosen command does, once the command line has been read.
  struct Chosen {
    std::function<int()> action;
    OnSignal on_signal = OnSignal::kIsEnded;
  };
  Command(CLI::App* app, Chosen* chosen) : app_(app), chosen_(chosen) {}

  // A command below this one; the help lists them in the order in which they are added.
  Command command(const std::string& name, const std::string& help);
  // One that does nothing by itself: it needs one of its own commands.
  Command group(const std::string& name, const std::string& help);
  // The help does not list it: programs give it, not people.
  Command unlisted();
  // It needs an argument, whichever.
  void needs_any();

  // What it does; the value is the exit code. The options, to which arguments are bound, live as
  // long as the command line.
  void runs(std::function<int()> action, OnSignal on_signal = OnSignal::kIsEnded);
  template <class Options>
  Options& runs(int (*run)(const Options&), OnSignal on_signal = OnSignal::kIsEnded) {
    const auto options = std::make_shared<Options>();
    runs([run, options] { return run(*options); }, on_signal);
    return *options;
  }

  // What it takes, and where that goes; with a name in front of it or, without dashes, by its
  // place.
  Argument option(const std::string& name, std::string& value, const std::string& help = "");
  Argument option(const std::string& name, std::optional<std::string>& value,
                  const std::string& help = "");
  Argument option(const std::string& name, std::vector<std::string>& value,
                  const std::string& help = "");
  Argument option(const std::string& name, int& value, const std::string& help = "");
  Argument option(const std::string& name, int64_t& value, const std::string& help = "");
  Argument option(const std::string& name, std::optional<int64_t>& value,
                  const std::string& help = "");
  Argument option(const std::string& name, uint64_t& value, const std::string& help = "");
  Argument option(const std::string& name, double& value, const std::string& help = "");
  Argument option(const std::string& name, bool& value, const std::string& help = "");
  Argument flag(const std::string& name, bool& value, const std::string& help = "");

 private:
  CLI::App* app_;
  Chosen* chosen_;
};

class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& purpose, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // The program, to which commands are added.
  Command program();

  // Reads the arguments. An exit code where nothing is left to do: help or the version was asked
  // for and is printed, or what is wrong with the arguments is.
  std::optional<int> read(int argc, char** argv);
  // What a signal does to the command that was given.
  OnSignal on_signal() const { return chosen_.on_signal; }
  int run() const;

 private:
  bool is_command(const std::string& word) const;

  std::unique_ptr<CLI::App> app_;
  Command::Chosen chosen_;
};

}  // namespace retort::launch
