// retort data arithmetic: the demo's generated word problems.
#include <cstdint>
#include <cstdio>
#include <string>

#include "launch/commands/command_line.h"
#include "recipes/data/arithmetic.h"

namespace retort::launch {
namespace {

struct ArithmeticCommand {
  std::string output;
  int64_t first = 0, count = 1000;
  uint64_t seed = 0;
  bool preferences = false;  // pairs of a right and a wrong solution
  int mistakes_percent = 0;  // of the rows, that have the wrong solution
};

int run_data_arithmetic(const ArithmeticCommand& command) {
  const auto rows =
      command.preferences ? data::ArithmeticRows::kPreferences : data::ArithmeticRows::kProblems;
  data::write_arithmetic_problems(command.output, command.first, command.count, command.seed,
                                  {.rows = rows, .mistakes_percent = command.mistakes_percent});
  std::printf("wrote %s: problems %lld to %lld of %lld\n", command.output.c_str(),
              static_cast<long long>(command.first),
              static_cast<long long>(command.first + command.count - 1),
              static_cast<long long>(data::num_arithmetic_problems()));
  return 0;
}

}  // namespace

void add_data_arithmetic(Command data) {
  Command c = data.command("arithmetic", "small word problems with a checkable answer");
  ArithmeticCommand& o = c.runs(run_data_arithmetic);
  c.option("--output", o.output, "JSONL file to write").required();
  c.option("--first", o.first, "number of the first problem").shows_default();
  c.option("--count", o.count).shows_default();
  c.option("--seed", o.seed).shows_default();
  c.flag("--preferences", o.preferences,
         "prompt, chosen and rejected: the right solution, and one with a mistake");
  c.option("--mistakes", o.mistakes_percent,
           "percent of the rows whose completion is the one with a mistake")
      .shows_default();
}

}  // namespace retort::launch
