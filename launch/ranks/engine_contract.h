// What an external role's engine was found to be, before anything relies on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engines/contract/contract.h"
#include "engines/contract/engine.h"
#include "models/decoder/decoder.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// The weights in a model folder, to compare an engine that serves them with: nullopt if there are
// none, or more than 4 GiB. Memory: one copy in fp32.
std::optional<models::Decoder> local_copy(const std::string& folder);

// A number that nothing asked of this server before had: what it caches is not asked for again.
uint64_t new_nonce();

// Asks `engine` what its answers mean. `local`: what it serves, or null. `needs`: of the role, for
// what is only asked where it is needed. Requests and errors: engines::probe.
engines::Contract probe_engine(engines::Engine& engine, const engines::ExternalOptions& options,
                               const std::string& url, const models::Decoder* local,
                               const engines::Needs& needs, Deadline deadline);

}  // namespace retort::launch
