// The rules of the house about headers: one pays its rent, and a public one is used by another
// module.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/house/cmake_lists.h"
#include "tests/house/layers.h"
#include "tests/house/sources.h"

namespace retort::house {

// The headers of the modules, and who includes each.
class HeaderRules {
 public:
  HeaderRules(const std::vector<Source>& sources, const LayerTable& modules);

  // A header of fewer than 25 lines, its contract among them, has two users besides its own .cc, or
  // a test that includes it, or is a door: its one user is in another room. Else what it declares
  // belongs into its one user. `exceptions`: path -> why it stays, each of which must be needed.
  void check_rent(const std::map<std::string, std::string>& exceptions,
                  const ReportAt& report) const;

  // A header that HEADERS lists is included by another module, or by a header that has to be
  // public for that. Tests and benchmarks may include private ones, and do not count.
  void check_public(const CMakeLists& lists, const ReportAt& report) const;

 private:
  struct Header {
    size_t num_lines = 0;
    std::vector<std::string> users;  // without its own .cc and tests
    bool is_tested = false;
  };

  bool pays_rent(const std::string& path, const Header& header) const;

  std::map<std::string, Header> headers_;
};

}  // namespace retort::house
