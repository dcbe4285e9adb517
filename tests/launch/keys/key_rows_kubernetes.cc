// Rows of what a run needs in pods.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {

using observed::manifests;

std::vector<KeyRow> kubernetes_rows() {
  const std::string block = "launch.kubernetes.";
  const std::string data = block + "volumes=[{path: /runs, claim: runs}, {path: /data, ";
  const std::vector<std::string> with{"launch.backend=kubernetes", block + "image=retort:1",
                                      "output_dir=/runs/first", data + "claim: data}]"};
  std::vector<std::string> with_source = with;
  with_source.back() = data + "source: {emptyDir: {}}}]";

  const auto shows = [&](const std::string& change) {
    return acts(kDistillBase, change, manifests, with);
  };
  const auto denied = [&](const std::string& change, const std::string& message) {
    return refused(kDistillBase, change, message, with);
  };
  const std::string elsewhere = "has no effect with launch.backend: local; write backend: kube";
  return {
      refused(kDistillBase, "launch.backend=kubernetes",
              "launch.kubernetes.image: is missing; expected"),
      shows(block + "namespace=train"),
      denied(block + "namespace=Train_1", "expected small letters, digits and '-'"),
      refused(kDistillBase, block + "namespace=train", elsewhere),
      shows(block + "image=retort:2"),
      denied(block + "image=\"\"", "image is empty"),
      refused(kDistillBase, block + "image=retort:1", elsewhere),

      shows(block + "volumes=[{path: /runs, claim: others}]"),
      denied(block + "volumes=[]", "'/runs/first' is on none of launch.kubernetes.volumes"),
      denied(block + "volumes=[{path: /runs, claim: a}, {path: /runs, claim: b}]", "there twice"),
      shows(block + "volumes.1.path=/more"),
      denied(block + "volumes.1.path=more", "expected the folder's absolute path"),
      denied(block + "volumes.1.path=/etc/retort/x", "is where the recipe and the secret are"),
      shows(block + "volumes.1.claim=more"),
      denied(block + "volumes.1.claim=null", "expected one of claim and source"),
      acts(kDistillBase, block + "volumes.1.source={hostPath: {path: /x}}", manifests, with_source),
      denied(block + "volumes.1.source={emptyDir: {}}", "expected one of claim and source"),
      shows(block + "volumes.1.read_only=true"),
      denied(block + "volumes.0.read_only=true", "which is read_only"),

      shows(block + "pod={nodeSelector: {pool: h200}}"),
      denied(block + "pod=[a]", "expected a block of keys, got a list"),
      denied(block + "pod={restartPolicy: OnFailure}",
             "launch.kubernetes.pod.restartPolicy: the run needs Never here, this says OnFailure"),
      denied(block + "pod={hostname: a}", "launch.kubernetes.pod.hostname: a pod of the run is"),

      denied("output_dir=first", "'first' is relative; with launch.backend: kubernetes"),
      denied("roles.teacher.model=teacher", "'teacher' is relative; with launch.backend:"),
      denied("launch.hosts=[{host: h1}]", "has no effect with launch.backend: kubernetes"),
      denied("launch.ssh.port=22222", "has no effect with launch.backend: kubernetes"),
      denied("roles.teacher.hosts=[h1]", "has no effect with launch.backend: kubernetes"),
      denied("roles.teacher.restarts=3", "a pod that fails ends the run"),
      denied("launch.max_restarts=1", "a pod that fails ends the run"),
      denied("launch.launcher_lost=continue", "the student's pod 0 keeps the run"),
      denied("launch.rendezvous.address=h1", "the run meets at the student's pod 0"),
      denied("launch.stop_timeout=26s",
             "Kubernetes kills a pod 30s after it asked it to end, so at most 25s are the run's; "
             "write a larger launch.kubernetes.pod.terminationGracePeriodSeconds"),
  };
}

}  // namespace retort::test
