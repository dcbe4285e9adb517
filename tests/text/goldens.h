// The files that make_goldens.py wrote, and folders for files that a test writes.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace retort::models {

using Json = nlohmann::ordered_json;

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(RETORT_TEXT_GOLDENS) / name;
}
inline Json read_json(const std::filesystem::path& path) { return Json::parse(read_file(path)); }

// A new folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "retort-text-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ErrorCode::kUnavailable, "cannot make a temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The message of the kInvalidArgument that `body` throws; a test failure if it throws anything else
// or nothing.
template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw something else: " << error.what();
    return {};
  }
  ADD_FAILURE() << "did not throw";
  return {};
}

}  // namespace retort::models
