// YAML text as a plain tree that remembers where everything stood, so that every complaint can say
// file:line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace retort::launch {

// Where a node was written; line 0: no line to name (the command line).
struct YamlPlace {
  std::string source;     // file name or "command line"
  int64_t line = 0;       // from 1
  int64_t merged_in = 0;  // the line of the `<<` that took it over from there; 0: none did
  // "recipe.yaml:12: ", "recipe.yaml:12 (merged in line 20): " or "command line: "
  std::string prefix() const;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;  // written in quotes: text, even if it looks like a number
  std::vector<YamlNode> items;
  std::vector<Entry> entries;  // in the order of the file, keys unique
  YamlPlace place;

  const Entry* find(std::string_view key) const;
  Entry* find(std::string_view key);
};

struct YamlNode::Entry {
  std::string key;
  YamlPlace place;  // of the key
  YamlNode value;
};

// "a block of key: value" and the like, for messages
std::string_view yaml_kind_name(YamlNode::Kind kind);

// Reads one YAML document (block or flow style, anchors). `${NAME}` in values becomes the
// environment variable NAME and `$${` a literal `${`. `<<: *anchor`, or a list of anchors, takes
// over the keys that its block does not have itself, whole values at a time; of several blocks that
// have a key the first counts. Source: yaml.org/type/merge.html, as PyYAML reads it.
// kInvalidArgument with file:line: syntax, bytes that are no UTF-8, a key that stands twice, a
// variable that is not set, keys that are not plain text, what is above the limits of
// yaml_limits.h.
YamlNode parse_yaml(std::string_view text, const std::string& source);

// Applies "key.path=value" (value: YAML; a list's items are counted from 0) to a tree that must be
// a map. Missing blocks are made; `null` removes the key or item that stands there.
// kInvalidArgument prefixed "command line: ".
void apply_override(YamlNode& root, std::string_view assignment);

}  // namespace retort::launch
