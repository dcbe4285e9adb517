// c10d's ProcessGroupGloo over TCP: send and recv of the same sizes. The receiver must know sizes
// and numbers before they come, so each turn begins by saying them.
#pragma once

#include <memory>
#include <string>

#include "bench/rpc/contestant.h"

namespace retort::bench {

// Both processes call their function at the same time, with the same file, which does not exist.
// The answering one returns when the contestant is gone.
void serve_gloo(const std::string& store_file);
std::unique_ptr<Contestant> make_gloo_contestant(const std::string& store_file, Source source);

}  // namespace retort::bench
