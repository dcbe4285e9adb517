// A block of an option file whose keys are another program's: nothing here knows or checks them.
#pragma once

#include <string>

namespace retort {

// A field type of option structs (base/options.h).
struct FreeBlock {
  std::string flow = "{}";  // YAML on one line; always a block of keys

  bool is_empty() const { return flow == "{}"; }
  bool operator==(const FreeBlock&) const = default;
};

}  // namespace retort
