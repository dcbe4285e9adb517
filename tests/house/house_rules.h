// The rules of the house that a program can check: who may include whom, what a public header may
// pull in, sizes, names; and those of the other files here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace retort::house {

// The rules that came after the code did: a tree says which of them it keeps already.
struct Rules {
  bool rooms = true;
  bool length_of_functions = true;
  bool rent = true;
  bool one_source_of_a_class = true;
  bool public_headers = true;
  // Small headers with one user that stay: path -> why.
  std::map<std::string, std::string> rent_exceptions = {};
};

// Every broken rule under `root`, as "path:line: what is wrong", sorted. Reads docs/architecture.md
// for the tables of modules, rooms and packages.
std::vector<std::string> find_violations(const std::filesystem::path& root,
                                         const Rules& rules = {});

// The number of source files that find_violations looks at.
size_t count_sources(const std::filesystem::path& root);

// The rooms of the modules as docs/architecture.md has to list them, by the includes. Errors:
// kInvalidArgument if rooms include each other, with all that do.
std::string room_block(const std::filesystem::path& root);

}  // namespace retort::house
