// What a user adds to a pod's spec beside what the run needs there.
#pragma once

#include <string>

#include "launch/yaml/tree.h"

namespace retort::launch {

// Adds `extra` to `spec`: blocks key by key, lists item by item, where items of one `name` (mounts:
// of one `mountPath`) are one item, as Kubernetes itself merges them. What stands in `spec` already
// is what the run needs: another value there is kInvalidArgument, naming its place under `path`.
void merge_into(YamlNode& spec, const YamlNode& extra, const std::string& path);

// kInvalidArgument that begins with a place, as "launch.kubernetes.pod.hostname".
[[noreturn]] void refuse_at(const std::string& path, const std::string& message);

}  // namespace retort::launch
