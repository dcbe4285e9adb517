// What a run and its roles are called in a cluster, where a name is a DNS label.
#pragma once

#include <map>
#include <string>

#include "recipes/document/recipe.h"

namespace retort::launch {

struct KubernetesNames {
  std::string run;                          // of its Service, ConfigMap and Secret
  std::map<std::string, std::string> jobs;  // role -> its Job

  // The host that the run meets at, as every pod of its namespace resolves it.
  std::string rendezvous() const;
};

// "Qwen 3/GRPO_a" -> "qwen-3-grpo-a": small letters, digits and single '-' inside, at most
// `longest` of them; "" where nothing is left.
std::string dns_label(const std::string& text, size_t longest);

// Another output_dir, or the same one on another volume, has other names: they end with a hash of
// it. Roles have different names however alike they are: those that come out equal are numbered.
// Labels are short enough for the index that a pod's host name ends with.
KubernetesNames kubernetes_names(const recipes::Recipe& recipe);

}  // namespace retort::launch
