// The files that make_goldens.py wrote.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "tests/support/source_folder.h"

namespace retort::models {

using Json = nlohmann::ordered_json;

inline std::filesystem::path golden(const std::string& name) {
  return test::source_folder() / "tests/text/goldens" / name;
}
inline Json read_json(const std::filesystem::path& path) { return Json::parse(read_file(path)); }

}  // namespace retort::models
