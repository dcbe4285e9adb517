#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace retort::test {
namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "retort-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw Error(ErrorCode::kUnavailable, "cannot make a temporary folder").with("path", name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  if (::testing::Test::HasFailure()) {
    std::fprintf(stderr, "kept: %s\n", path_.c_str());
    return;
  }
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TemporaryFolder::write(const std::string& name, std::string_view content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return path_ / name;
}

}  // namespace retort::test
