// What exec takes for arguments and environment.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

namespace retort {

// The texts as pointers, a null behind the last. They point into `texts`, and nobody writes there.
inline std::vector<char*> exec_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts)
    result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// The environment of this process, "NAME=value".
inline std::vector<std::string> own_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry)
    all.emplace_back(*entry);
  return all;
}

}  // namespace retort
