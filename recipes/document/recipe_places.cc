#include "recipes/document/recipe_places.h"

#include <algorithm>
#include <cstddef>

namespace retort::recipes {

KeyPath key_path(const std::string& key) {
  KeyPath parts;
  for (size_t begin = 0; begin < key.size();) {
    const size_t end = std::min(key.find_first_of(".[]", begin), key.size());
    if (end > begin) parts.push_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace retort::recipes
