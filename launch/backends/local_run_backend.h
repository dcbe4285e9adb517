// A run on the launcher's own host.
#pragma once

#include <memory>

#include "launch/backends/run_backend.h"

namespace retort::launch {

class LocalRunBackend final : public RunBackend {
 public:
  using RunBackend::RunBackend;
  std::unique_ptr<Start> begin(const Beginning& how, SignalCatcher& signals) override;
  std::unique_ptr<Start> attach(const RunFolder& folder, const RunStatus& status,
                                SignalCatcher& signals) override;
};

}  // namespace retort::launch
