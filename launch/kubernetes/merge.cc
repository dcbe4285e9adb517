#include "launch/kubernetes/merge.h"

#include <algorithm>

#include "base/error.h"
#include "launch/yaml/build.h"

namespace retort::launch {
namespace {

// The value by which the items of a list are told apart; "" for an item without it.
std::string identity_of(const YamlNode& item, const std::string& key) {
  const auto* entry = item.kind == YamlNode::Kind::kMap ? item.find(key) : nullptr;
  return entry ? entry->value.scalar : "";
}

void merge_list(YamlNode& spec, const YamlNode& extra, const std::string& path) {
  const std::string key = path.ends_with("volumeMounts") ? "mountPath" : "name";
  for (const YamlNode& item : extra.items) {
    const std::string identity = identity_of(item, key);
    if (identity.empty()) refuse_at(path, "each item needs `" + key + "`");
    const auto same = std::ranges::find_if(
        spec.items, [&](const YamlNode& one) { return identity_of(one, key) == identity; });
    if (same == spec.items.end())
      spec.items.push_back(item);
    else
      merge_into(*same, item, path + "[" + identity + "]");
  }
}

bool holds_blocks(const YamlNode& list) {
  return list.kind == YamlNode::Kind::kList && !list.items.empty() &&
         list.items.front().kind == YamlNode::Kind::kMap;
}

}  // namespace

void merge_into(YamlNode& spec, const YamlNode& extra, const std::string& path) {
  if (spec.kind == YamlNode::Kind::kMap && extra.kind == YamlNode::Kind::kMap) {
    for (const YamlNode::Entry& entry : extra.entries) {
      auto* own = spec.find(entry.key);
      if (own)
        merge_into(own->value, entry.value, path + "." + entry.key);
      else
        add_entry(spec, entry.key, entry.value);
    }
    return;
  }
  if (holds_blocks(spec) && extra.kind == YamlNode::Kind::kList)
    return merge_list(spec, extra, path);

  // What the run itself needs may be said again, but not be changed.
  const std::string needed = yaml_line(spec);
  if (const std::string wanted = yaml_line(extra); wanted != needed)
    refuse_at(path, "the run needs " + needed + " here, this says " + wanted + "; remove it");
}

void refuse_at(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, path + ": " + message);
}

}  // namespace retort::launch
