// The store of a run, as whoever keeps the run serves it.
#pragma once

#include <cstdint>
#include <string>

#include "recipes/document/recipe.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {

// Serves the store at `bind`, with the recipe's times for the connections of its processes. Errors
// of rpc::RendezvousServer.
rpc::RendezvousServer serve_store(const recipes::Recipe& recipe,
                                  const rpc::RendezvousAccess& access, const std::string& bind,
                                  int64_t port);

// The secret of launch.secret_file, or one that is made for the run. Errors of read_secret.
std::string run_secret(const recipes::Recipe& recipe);

}  // namespace retort::launch
