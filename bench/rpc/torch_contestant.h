// Python's torch.distributed.rpc: bench/rpc/torch_rpc.py, which runs while its turn lasts and is
// stopped in between, because its shared memory transport polls.
#pragma once

#include <memory>
#include <string>

#include "bench/rpc/contestant.h"

namespace retort::bench {

// `python` has torch. `transport`: "default" or "uv". Throws when it does not come up.
std::unique_ptr<Contestant> make_torch_contestant(const std::string& python,
                                                  const std::string& transport);

}  // namespace retort::bench
