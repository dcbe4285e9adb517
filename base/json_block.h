// A block of an option file that is handed on as it is, as a JSON object.
#pragma once

#include <string>

namespace retort {

// A field type of option structs (base/options.h). Unlike a FreeBlock's, its values have JSON's
// types: what YAML calls a number, true, false or null is one.
struct JsonBlock {
  std::string json = "{}";  // on one line; always an object
};

}  // namespace retort
