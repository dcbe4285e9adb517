// `launch.kubernetes`: what a run needs to know of its cluster.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/free_block.h"
#include "base/options.h"
#include "base/units.h"

namespace retort::recipes {

// The grace period of a pod that does not say otherwise, and what of it is not the run's to use:
// the end of `retort join` itself, and the time of the message.
inline constexpr Duration kPodGrace{30'000}, kPodMargin{5'000};

// One entry of `launch.kubernetes.volumes`: where all pods see one storage.
struct VolumeOptions {
  std::string path;
  std::optional<std::string> claim;
  FreeBlock source;
  bool read_only = false;

  template <class V>
  void fields(V& visit) {
    visit("path", path, "where pods see it; paths of the recipe are those of the pods");
    visit("claim", claim, "the name of its PersistentVolumeClaim");
    visit("source", source,
          "instead of a claim: a volume as Kubernetes writes it, without its name: {nfs: {server: "
          "S, path: P}}");
    visit("read_only", read_only, "pods only read from it");
  }
  void validate() const;
  bool operator==(const VolumeOptions&) const = default;
};

struct KubernetesOptions {
  std::string name_space = "default";
  std::optional<std::string> image;
  std::vector<VolumeOptions> volumes;
  FreeBlock pod;

  template <class V>
  void fields(V& visit) {
    visit("namespace", name_space, "of everything that is printed");
    visit("image", image, "with `retort` in its PATH; required with backend: kubernetes");
    visit("volumes", volumes, "storage that every pod sees; output_dir is on one of them");
    visit("pod", pod,
          "merged into every pod's spec, as Kubernetes writes it: nodeSelector, tolerations, "
          "containers: [{name: retort, resources: ...}]");
  }
  void validate() const;
  // The volume that holds this absolute path: of several, the one that is mounted deepest. Null:
  // none, it is in the image.
  const VolumeOptions* volume_of(const std::string& path) const;
};

}  // namespace retort::recipes
