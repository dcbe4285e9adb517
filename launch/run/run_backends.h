// Which class a value of launch.backend is.
#pragma once

#include <memory>

#include "launch/backends/run_backend.h"

namespace retort::launch {

// The recipe's.
std::unique_ptr<RunBackend> make_run_backend(const RunBackendOptions& options);

}  // namespace retort::launch
