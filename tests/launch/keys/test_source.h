// Whether a text stands in a test that is compiled and run.
#pragma once

#include <filesystem>
#include <string>

namespace retort::test {

// Says what is wrong; "" if the file below `root` holds the text where a test comes to it: in a
// test that is not disabled and does not begin with GTEST_SKIP, or in a function or a table that
// the rest of the file names. Comments do not count, and a .cc must stand in the CMakeLists.txt of
// its folder or of one above. Of headers, of sources without a test and of scripts it asks only
// that the text is no comment: their tests are elsewhere.
std::string why_not_tested(const std::filesystem::path& root, const std::string& file,
                           const std::string& text);

}  // namespace retort::test
