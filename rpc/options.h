// Options of the RPC layer: what a recipe's `rpc:` block says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/units.h"

namespace retort::rpc {

struct RpcOptions {
  // TensorPipe transports, best first: uv, shm (only where a recipe asks for it).
  std::vector<std::string> transports{"uv"};
  // TensorPipe channels, best first: cma, basic.
  std::vector<std::string> channels{"cma", "basic"};
  Duration timeout{120'000};  // default deadline of a call
  // The time between two heartbeats on a control socket.
  Duration heartbeat_interval{1'000};
  // A peer that is silent for longer is lost.
  Duration peer_timeout{15'000};
  // For each peer. Beyond it, calls wait or fail, as CallOptions::wait_for_credit says.
  ByteSize max_inflight_bytes{uint64_t{2} << 30};
  // For each message; checked before memory is allocated.
  ByteSize max_message_bytes{uint64_t{4} << 30};
  // Peer role -> index of a CUDA device here -> index of a CUDA device there.
  std::map<std::string, std::map<std::string, int64_t>> device_maps;

  template <class V>
  void fields(V& visit) {
    visit("transports", transports, "TensorPipe transports, best first: uv | shm");
    visit("channels", channels, "TensorPipe channels, best first: cma | basic");
    visit("timeout", timeout, "default deadline of a remote call");
    visit("heartbeat_interval", heartbeat_interval, "time between heartbeats on a control socket");
    visit("peer_timeout", peer_timeout, "a peer silent for longer is lost");
    visit("max_inflight_bytes", max_inflight_bytes,
          "bytes in flight to one peer before calls wait");
    visit("max_message_bytes", max_message_bytes, "largest message accepted");
    visit("device_maps", device_maps,
          "peer role -> local cuda index -> remote cuda index; default: the same index");
  }
  // Throws kInvalidArgument naming the field: unknown transport or channel, zero timeouts, ...
  void validate() const;
};

}  // namespace retort::rpc
