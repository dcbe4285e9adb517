// The programs that the tests give as `command`: this binary, with a part to play.
#pragma once

#include <string>
#include <vector>

namespace retort::test {

// argv of the child that plays `part`.
std::vector<std::string> player(const std::string& part);
// In such a child: plays and does not return. Elsewhere: nothing.
void play_if_asked(int argc, char** argv);
// The first line that such a child writes, from a pipe that need not block; what there is of it
// after a minute.
std::string line_from(int fd);

}  // namespace retort::test
