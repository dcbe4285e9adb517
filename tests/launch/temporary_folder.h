// A folder of its own for one test, removed at its end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace retort::test {

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "retort-launch-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  static void put(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string get(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  // A complete checkpoint as far as its folder goes.
  void checkpoint(int64_t step, bool complete = true) const {
    const auto path = folder_ / ("checkpoint-" + std::to_string(step));
    put(path / "config.json", "{}");
    if (complete) put(path / "state" / "COMPLETE", "complete\n");
  }

  std::filesystem::path folder_;
};

}  // namespace retort::test
