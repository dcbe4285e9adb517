// retort data arithmetic: the demo's generated word problems, and products for a calculator.
#include <cstdint>
#include <cstdio>
#include <string>

#include "launch/commands/command_line.h"
#include "recipes/data/arithmetic.h"
#include "recipes/data/product_problems.h"

namespace retort::launch {
namespace {

struct ArithmeticCommand {
  std::string output;
  int64_t first = 0, count = 1000;
  uint64_t seed = 0;
  bool preferences = false;  // pairs of a right and a wrong solution
  int mistakes_percent = 0;  // of the rows, that have the wrong solution
  bool tools = false;        // products, and a call of the calculator
  bool prompts = false;      // of these the questions alone
  int digits = data::ProductOptions().digits;
  int calls_percent = data::ProductOptions().calls_percent;
};

// Writes the rows. Returns how many problems there are of their kind.
int64_t write_problems(const ArithmeticCommand& command) {
  if (!command.tools) {
    const auto rows =
        command.preferences ? data::ArithmeticRows::kPreferences : data::ArithmeticRows::kProblems;
    data::write_arithmetic_problems(command.output, command.first, command.count, command.seed,
                                    {.rows = rows, .mistakes_percent = command.mistakes_percent});
    return data::num_arithmetic_problems();
  }
  const auto rows = command.prompts ? data::ProductRows::kPrompts : data::ProductRows::kCalls;
  data::write_product_problems(command.output, command.first, command.count, command.seed,
                               {.rows = rows,
                                .digits = command.digits,
                                .calls_percent = command.calls_percent});
  return data::num_product_problems(command.digits);
}

int run_data_arithmetic(const ArithmeticCommand& command) {
  const int64_t size = write_problems(command);
  const std::string calls = command.tools && !command.prompts
                                ? ", " + std::to_string(command.calls_percent) + " % with a call"
                                : "";
  std::printf("wrote %s: problems %lld to %lld of %lld%s\n", command.output.c_str(),
              static_cast<long long>(command.first),
              static_cast<long long>(command.first + command.count - 1),
              static_cast<long long>(size), calls.c_str());
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
  const Argument preferences =
      c.flag("--preferences", o.preferences,
             "prompt, chosen and rejected: the right solution, and one with a mistake");
  const Argument mistakes =
      c.option("--mistakes", o.mistakes_percent,
               "percent of the rows whose completion is the one with a mistake")
          .shows_default();

  const Argument tools =
      c.flag("--tools", o.tools,
             "products of long numbers, each with the call of a calculator that gives it")
          .excludes(preferences)
          .excludes(mistakes);
  c.flag("--prompts", o.prompts, "with --tools: the question and its answer alone, for grpo")
      .needs(tools);
  c.option("--digits", o.digits,
           "with --tools: of one factor, 2 to 9; the other one has one digit fewer")
      .shows_default()
      .needs(tools);
  c.option("--calls", o.calls_percent,
           "with --tools: percent of the rows that have the call; the others answer at once")
      .shows_default()
      .needs(tools);
}

}  // namespace retort::launch
