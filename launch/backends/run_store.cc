#include "launch/backends/run_store.h"

#include "base/error.h"
#include "base/hash.h"
#include "launch/run_folder/secret_file.h"
#include "rpc/listen_address.h"

namespace retort::launch {

rpc::RendezvousServer serve_store(const recipes::Recipe& recipe,
                                  const rpc::RendezvousAccess& access, const std::string& bind,
                                  int64_t port) {
  try {
    return rpc::RendezvousServer(access, bind, std::to_string(port),
                                 {.interval = recipe.rpc.heartbeats(recipe.num_processes()),
                                  .limit = recipe.rpc.peer_timeout});
  } catch (const Error& error) {
    // Only a port that is taken is to be mended with launch.rendezvous.port. An address that is not
    // this host's comes from another key.
    if (port == 0 || !rpc::is_port_taken(error)) throw;
    throw Error(error.code(),
                "launch.rendezvous.port: " + error.message() + " (port " + std::to_string(port) +
                    "); write another one, or 0, with which the system chooses one that is free",
                error.origin(), error.context());
  }
}

std::string run_secret(const recipes::Recipe& recipe) {
  const auto& file = recipe.launch.secret_file;
  return file ? read_secret(*file) : random_hex(32);
}

}  // namespace retort::launch
