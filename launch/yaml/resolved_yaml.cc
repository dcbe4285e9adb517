#include "launch/yaml/resolved_yaml.h"

#include "launch/yaml/writer.h"

namespace retort::launch {

std::string resolved_yaml(const recipes::Recipe& recipe) {
  YamlWriter writer(/*indent=*/0, /*names_only=*/"env");
  recipes::Recipe copy = recipe;
  copy.fields(writer);
  return writer.str();
}

}  // namespace retort::launch
