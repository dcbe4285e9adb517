// What documents name between backticks is there.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/house/sources.h"
#include "tests/house/text_rules.h"

namespace retort::house {

class CitedNames {
 public:
  // `sources`: of the tree; they outlive this.
  explicit CitedNames(const std::vector<Source>& sources);

  // `rpc/agent.h`, `agent.h` and `rpc/transport`: a source, a source's name, a folder of sources.
  void check_paths(const Source& document, const Report& report) const;

  // `call`, `Agent::call` and `Agent::Impl::call`: one C++ file outside of tests has all of its
  // words.
  void check_identifiers(const Source& document, const Report& report) const;

 private:
  const std::vector<Source>& sources_;
  std::set<std::string> paths_, names_, folders_;  // of C++ files
};

}  // namespace retort::house
