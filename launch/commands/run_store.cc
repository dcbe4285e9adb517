#include "launch/commands/run_store.h"

#include "base/hash.h"
#include "launch/supervision/secret_file.h"

namespace retort::launch {

rpc::RendezvousServer serve_store(const recipes::Recipe& recipe,
                                  const rpc::RendezvousAccess& access, const std::string& bind,
                                  int64_t port) {
  return rpc::RendezvousServer(
      access, bind, std::to_string(port),
      {.interval = recipe.rpc.heartbeat_interval, .limit = recipe.rpc.peer_timeout});
}

std::string run_secret(const recipes::Recipe& recipe) {
  const auto& file = recipe.launch.secret_file;
  return file ? read_secret(*file) : random_hex(32);
}

}  // namespace retort::launch
