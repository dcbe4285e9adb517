// The test program, which is also the children and the launchers that the tests start.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/end_process.h"
#include "tests/launch/supervision/supervised_child.h"

namespace retort::test {
int run_launcher(const std::filesystem::path& folder, const std::string& scene);
}

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "child") retort::end_process(retort::test::run_child(argc, argv));
  if (what == "launcher") retort::end_process(retort::test::run_launcher(argv[2], argv[3]));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
