// A run whose processes a cluster starts as pods: no launcher starts it.
#pragma once

#include <memory>
#include <string>

#include "launch/backends/run_backend.h"

namespace retort::launch {

class KubernetesRunBackend final : public RunBackend {
 public:
  using RunBackend::RunBackend;
  // The run's manifests. Errors of kubernetes_manifests.
  std::string dry_run(bool resume, bool overwrite) const override;
  // Always kInvalidArgument, with what to do instead.
  void check() override;
  bool can_be_attached() const override { return false; }
  std::unique_ptr<Start> begin(const Beginning& how, SignalCatcher& signals) override;
};

}  // namespace retort::launch
