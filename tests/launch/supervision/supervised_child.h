// The program that supervisor tests start: this test binary, started as one of a few small
// children.
#pragma once

namespace retort::test {

// argv: <binary> child <mode> <folder> [more]. Returns the child's exit code.
int run_child(int argc, char** argv);

}  // namespace retort::test
