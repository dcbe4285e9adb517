#include "launch/document/yaml_locations.h"

#include <charconv>

namespace retort::launch {
namespace {

std::string dotted(const recipes::KeyPath& path) {
  std::string name;
  for (const auto& key : path)
    name += (name.empty() ? "" : ".") + key;
  return name;
}

// The item of a list whose number is `key`; null if there is none.
const YamlNode* item_of(const YamlNode& list, const std::string& key) {
  const char* end = key.data() + key.size();
  size_t index = 0;
  const auto [rest, error] = std::from_chars(key.data(), end, index);
  if (error != std::errc() || rest != end || index >= list.items.size()) return nullptr;
  return &list.items[index];
}

// The value that stands under `key` in a list or a block; null if there is none.
const YamlNode* value_under(const YamlNode& node, const std::string& key) {
  if (node.kind == YamlNode::Kind::kList) return item_of(node, key);
  const auto* entry = node.find(key);
  return entry ? &entry->value : nullptr;
}

}  // namespace

YamlPlace YamlPlaces::place_of(const recipes::KeyPath& path) const {
  const YamlNode* node = &root_;
  YamlPlace place = root_.place;
  for (const auto& key : path) {
    if (node->kind == YamlNode::Kind::kList) {
      const YamlNode* item = item_of(*node, key);
      if (!item) break;
      node = item;
      place = node->place;
      continue;
    }
    const auto* entry = node->find(key);
    if (!entry) break;
    node = &entry->value;
    place = node->place.source.empty() || node->kind != YamlNode::Kind::kScalar ? entry->place
                                                                                : node->place;
  }
  return place;
}

bool YamlPlaces::written(const recipes::KeyPath& path) const {
  const YamlNode* node = &root_;
  for (const auto& key : path) {
    node = value_under(*node, key);
    if (!node || node->kind == YamlNode::Kind::kNull) return false;
  }
  return true;
}

void YamlPlaces::refuse(const recipes::KeyPath& path, const std::string& message,
                        ErrorCode code) const {
  const std::string name = dotted(path);
  throw Error(code, place_of(path).prefix() + (name.empty() ? "" : name + ": ") + message);
}

void YamlPlaces::warn(const recipes::KeyPath& path, const std::string& message) const {
  warnings_.push_back(place_of(path).prefix() + dotted(path) + ": " + message);
}

}  // namespace retort::launch
