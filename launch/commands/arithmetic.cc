// retort data arithmetic: the demo's generated word problems.
#include <cstdio>

#include "launch/commands/commands.h"
#include "recipes/data/arithmetic.h"

namespace retort::launch {

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

}  // namespace retort::launch
