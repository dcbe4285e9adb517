#include "launch/document/key_paths.h"

#include "launch/yaml/reader.h"
#include "recipes/document/recipe.h"

namespace retort::launch {
namespace {

// Adds the keys of a T that stands at `path`, and of the blocks inside it.
template <class T>
void collect_keys(const std::string& path, std::vector<std::string>& keys) {
  if constexpr (detail::kIsOptional<T>) {
    collect_keys<typename T::value_type>(path, keys);
  } else if constexpr (detail::kIsVector<T>) {
    collect_keys<typename T::value_type>(path + "[]", keys);
  } else if constexpr (detail::kIsMap<T>) {
    collect_keys<typename T::mapped_type>(path + ".<name>", keys);
  } else if constexpr (detail::OptionStruct<T>) {
    T block{};
    auto visit = [&]<class Value>(const char* name, Value&, const char*) {
      const std::string key = path.empty() ? name : path + "." + name;
      keys.push_back(key);
      collect_keys<Value>(key, keys);
    };
    block.fields(visit);
  }
}

}  // namespace

std::vector<std::string> recipe_key_paths() {
  std::vector<std::string> keys;
  collect_keys<recipes::Recipe>("", keys);
  return keys;
}

std::string places_of_key(std::string_view key) {
  std::string places;
  for (const std::string& path : recipe_key_paths())
    if (std::string_view(path).substr(path.rfind('.') + 1) == key)
      places += (places.empty() ? "" : " or ") + path;
  return places;
}

}  // namespace retort::launch
