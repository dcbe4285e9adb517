// A value of an option file that is one text, or a list of texts, which mean different things.
#pragma once

#include <string>
#include <vector>

namespace retort {

// A field type of option structs (base/options.h).
struct TextOrList {
  std::vector<std::string> items;  // of a text: that one
  bool is_list = false;

  bool operator==(const TextOrList&) const = default;
};

}  // namespace retort
