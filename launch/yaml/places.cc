#include "launch/yaml/places.h"

namespace retort::launch {
namespace {

std::string dotted(const recipes::KeyPath& path) {
  std::string name;
  for (const auto& key : path)
    name += (name.empty() ? "" : ".") + key;
  return name;
}

}  // namespace

YamlPlace YamlPlaces::place_of(const recipes::KeyPath& path) const {
  const YamlNode* node = &root_;
  YamlPlace place = root_.place;
  for (const auto& key : path) {
    if (node->kind == YamlNode::Kind::kList) {
      const size_t index = std::stoul(key);
      if (index >= node->items.size()) break;
      node = &node->items[index];
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
    const auto* entry = node->find(key);
    if (!entry || entry->value.kind == YamlNode::Kind::kNull) return false;
    node = &entry->value;
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
