// Complaints about a recipe with the place where its keys were written.
#pragma once

#include <string>
#include <vector>

#include "launch/yaml/tree.h"
#include "recipes/document/recipe_places.h"

namespace retort::launch {

// `root` must outlive it.
class YamlPlaces : public recipes::RecipePlaces {
 public:
  explicit YamlPlaces(const YamlNode& root) : root_(root) {}

  bool written(const recipes::KeyPath& path) const override;
  [[noreturn]] void refuse(const recipes::KeyPath& path, const std::string& message,
                           ErrorCode code = ErrorCode::kInvalidArgument) const override;
  void warn(const recipes::KeyPath& path, const std::string& message) const override;
  // What warn() was told, each once, with its place.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // The place of the deepest node of `path` that was written.
  YamlPlace place_of(const recipes::KeyPath& path) const;

  const YamlNode& root_;
  mutable std::vector<std::string> warnings_;
};

}  // namespace retort::launch
