// The environment of processes whose roles compute on the stand-in device: they find it where they
// look for CUDA's module.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace retort::test {

// A variable of the environment while this lives, for the processes that are started meanwhile too.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// `device: cuda` means the stand-in, of which each process sees `devices`, while this lives. The
// module lies beside the test.
class StandInModule {
 public:
  explicit StandInModule(int64_t devices = 1)
      : module_("RETORT_CUDA_MODULE", path().string()),
        devices_("STAND_IN_DEVICES", std::to_string(devices)) {
    EXPECT_TRUE(std::filesystem::exists(path())) << path();
  }

 private:
  static std::filesystem::path path() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libretort_stand_in.so";
  }

  const Setting module_, devices_;
};

}  // namespace retort::test
