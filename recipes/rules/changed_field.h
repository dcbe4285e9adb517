// Tells whether anything of a block differs from its defaults.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace retort::recipes {

// The name of the first field of an option struct (base/options.h) that does not have its default;
// "" if all have. Fields are compared by ==.
template <class Options>
std::string changed_field(Options options) {
  Options usual;
  std::vector<const void*> defaults;
  auto collect = [&](const char*, auto& value, const char*) { defaults.push_back(&value); };
  usual.fields(collect);

  // Both structs visit the same fields in the same order, so that each address is of this type.
  std::string changed;
  size_t field = 0;
  auto compare = [&]<class Value>(const char* name, Value& value, const char*) {
    const auto& its_default = *static_cast<const Value*>(defaults[field++]);
    if (changed.empty() && !(value == its_default)) changed = name;
  };
  options.fields(compare);
  return changed;
}

}  // namespace retort::recipes
