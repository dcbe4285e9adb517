// The programs that the tests give as `command`: this binary, with a part to play.
#pragma once

#include <string>
#include <vector>

namespace retort::test {

// argv of the child that plays `part`.
std::vector<std::string> player(const std::string& part);
// In such a child: plays and does not return. Elsewhere: nothing.
void play_if_asked(int argc, char** argv);

}  // namespace retort::test
