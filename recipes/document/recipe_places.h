// The places where a recipe's keys were written. A check needs them to complain about the right
// line.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace retort::recipes {

// {"train", "max_steps"}; items of lists by their number, "0" first.
using KeyPath = std::vector<std::string>;
// "rewards[0].template" -> {"rewards", "0", "template"}.
KeyPath key_path(const std::string& key);

// Implemented by what read the recipe (launch/document).
class RecipePlaces {
 public:
  virtual ~RecipePlaces() = default;
  // True if the key stands in the recipe with a value other than null.
  virtual bool written(const KeyPath& path) const = 0;
  // Throws Error(code) "file:line: path: message", with the line of the deepest key of `path` that
  // was written.
  [[noreturn]] virtual void refuse(const KeyPath& path, const std::string& message,
                                   ErrorCode code = ErrorCode::kInvalidArgument) const = 0;
  // Says what is allowed but probably not meant.
  virtual void warn(const KeyPath& path, const std::string& message) const = 0;
};

}  // namespace retort::recipes
