// Which files the CMakeLists.txt of a tree name.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/house/sources.h"

namespace retort::house {

class CMakeLists {
 public:
  explicit CMakeLists(const std::vector<Source>& sources);

  // Whether the CMakeLists.txt of its folder or of one above names the file.
  bool name(const std::filesystem::path& path) const;

  // Whether it stands under HEADERS of its module, which is what other modules may include.
  bool is_public(const std::filesystem::path& header) const {
    return public_.count(header.lexically_normal().string());
  }

 private:
  void read_headers(const std::filesystem::path& folder, const std::string& text);

  std::map<std::filesystem::path, std::string> text_of_;  // without comments
  std::set<std::string> public_;
};

}  // namespace retort::house
