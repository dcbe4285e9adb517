// The scenarios of stand_in_ranks_test: what the ranks of a test do, each in a process of its own.
#pragma once

#include <cstdint>

namespace retort::test {

void sound_scenario();
void told_scenario();
// The mistakes are shared out to series, which run side by side: most of their time is waits.
constexpr int64_t kMistakeSeries = 5;
void mistakes_scenario(int64_t series);

}  // namespace retort::test
