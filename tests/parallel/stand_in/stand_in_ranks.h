// The scenarios of stand_in_ranks_test: what the ranks of a test do, each in a process of its own.
#pragma once

namespace retort::test {

void collectives_scenario();
void mistakes_scenario();

}  // namespace retort::test
