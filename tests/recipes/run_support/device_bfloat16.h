// The first step of recipes in bfloat16 whose roles compute on a device, beside the same step in
// float32 on the CPU: on a GPU and on the stand-in.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "tests/recipes/run_support/bfloat16_support.h"

namespace retort::test {

struct Bfloat16Case {
  std::string name;
  // The recipe of one step, all of whose files lie in the folder.
  std::function<WriteRun(const TemporaryFolder& folder)> write;
  int64_t rows = 0;                // of the step: all that there are, as in bfloat16_run_test
  std::vector<std::string> roles;  // in bfloat16, and on the device but for a generator
  std::function<std::vector<std::string>(const TemporaryFolder& folder)> more;  // settings
};
// sft with and without an adapter, each payload of a teacher, dpo, kto, a reward model, and grpo,
// whose generator computes on the CPU: one in bfloat16 on a device draws other tokens.
std::vector<Bfloat16Case> bfloat16_cases();
void PrintTo(const Bfloat16Case& c, std::ostream* out);  // for GoogleTest

// As expect_bfloat16_follows.
void expect_bfloat16_follows_on_device(const Bfloat16Case& c);

}  // namespace retort::test
