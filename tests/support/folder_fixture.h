// A fixture whose tests write files.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/file.h"
#include "tests/support/temporary_folder.h"

namespace retort::test {

class FolderTest : public ::testing::Test {
 protected:
  // Also makes the folders that `path` lies in.
  static void put(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string get(const std::filesystem::path& path) { return read_file(path); }

 private:
  const TemporaryFolder temporary_;

 protected:
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace retort::test
