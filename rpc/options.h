// Options of the RPC layer: what a recipe's `rpc:` block says.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/units.h"

namespace retort::rpc {

enum class Encryption { kAuto, kAlways, kNever };

struct RpcOptions {
  // What carries the connections: tcp, the project's own. TensorPipe's uv, shm and ibv are refused,
  // because their listeners read strangers' bytes before anything is proved.
  std::vector<std::string> transports{"tcp"};
  // Where the process listens: an address, interface, subnet or name of its host
  // (base/network_interfaces.h). auto: 127.0.0.1; in a run, the address on the way to the
  // rendezvous (rpc/listen_address.h).
  std::string bind = "auto";
  // What others are told: host or host:port; empty: the address that is listened at.
  std::string advertise;
  // The one port of a process: a number, a range "7000-7100" or 0, any that is free.
  std::string port = "0";
  // TLS 1.3 with the run's secret; kAuto: where `bind` is no loopback address. Alike in all
  // processes of a run.
  Encryption encryption = Encryption::kAuto;
  // How long the process's network thread looks for the next event, after the last one, before it
  // sleeps. Saves small calls the wake-up, and costs a core of every process of the run while calls
  // come and go: for hosts with more cores than threads. 0: it sleeps at once.
  ShortDuration spin{0};
  // TensorPipe channels, best first: cma, basic.
  std::vector<std::string> channels{"cma", "basic"};
  // The time limit of a call, from the moment when its handler begins. Whatever lies before it (the
  // queue of handlers, credit, the wire) has queue_timeout, and without that ends when the peer is
  // lost.
  Duration timeout{120'000};
  std::optional<Duration> queue_timeout;
  // The time between two heartbeats on a control socket. Without it heartbeats() says.
  std::optional<Duration> heartbeat_interval;
  // A peer that is silent for longer is lost.
  Duration peer_timeout{15'000};
  // Each peer has this bound. What is sent to it and not done: beyond it, calls wait or fail, as
  // CallOptions::wait_for_credit says. What it may have on its way here.
  ByteSize max_inflight_bytes{uint64_t{2} << 30};
  // Calls to a peer that are not done; beyond it calls wait or fail likewise. The lower number of
  // both ends holds.
  int64_t max_inflight_calls = 256;
  // Large messages of all peers together that are on their way here or not yet taken. Each peer
  // gets an equal window of it; a message that no window holds goes alone.
  ByteSize receive_budget{uint64_t{4} << 30};
  // The bound of each message; checked before memory is allocated.
  ByteSize max_message_bytes{uint64_t{4} << 30};
  // Peer role -> index of a CUDA device here -> index of a CUDA device there. "Here" is the agent's
  // process; in a recipe it is the student's (recipes/run/rank/agent_options.h).
  std::map<std::string, std::map<std::string, int64_t>> device_maps;

  // The interval of a process that is in touch with up to `peers` others: heartbeat_interval, or
  // without it a second, and more with many, so that heartbeats take about 1 % of a core
  // (docs/scale.md).
  Duration heartbeats(int64_t peers = 0) const;

  template <class V>
  void fields(V& visit) {
    visit("transports", transports, "what carries the connections: tcp");
    visit("bind", bind,
          "address, interface, subnet or name to listen at; auto: as the way to the rendezvous");
    visit("advertise", advertise, "host or host:port that peers use; empty: as bound");
    visit("port", port, "one a process: a number, a range like \"7000-7100\", or 0: any");
    visit("encryption", encryption, "TLS with the run's secret; auto: off loopback");
    visit("spin", spin, "busy waiting before sleeping, a core a process; 0us: none");
    visit("channels", channels, "TensorPipe channels, best first: cma | basic");
    visit("timeout", timeout, "of a remote call, from the start of its handler");
    visit("queue_timeout", queue_timeout,
          "of a remote call, until its handler starts; null: for as long as the peer lives");
    visit("heartbeat_interval", heartbeat_interval,
          "time between heartbeats on a control socket; null: 1s, or 7ms for each process of the "
          "run if that is more, at most half of peer_timeout");
    visit("peer_timeout", peer_timeout, "a peer silent for longer is lost");
    visit("max_inflight_bytes", max_inflight_bytes,
          "bytes in flight to one peer before calls wait");
    visit("max_inflight_calls", max_inflight_calls,
          "calls in flight to one peer before calls wait");
    visit("receive_budget", receive_budget, "bytes that all peers together may have on their way");
    visit("max_message_bytes", max_message_bytes, "largest message accepted");
    visit("device_maps", device_maps,
          "teacher role -> the student's cuda index -> the teacher's; none: through host memory");
  }
  // Throws kInvalidArgument naming the field: unknown transport or channel, zero timeouts, ...
  void validate() const;
  // The largest message that goes beside others to a process which so many peers send to: a larger
  // one goes alone (receive_budget). At most max_message_bytes.
  uint64_t window_bytes(int64_t num_peers) const;
  // How many processes of a host `port` has a port for; nullopt: any number. kInvalidArgument.
  std::optional<int64_t> num_ports() const;
};

}  // namespace retort::rpc

template <>
struct retort::EnumNames<retort::rpc::Encryption> {
  using E = retort::rpc::Encryption;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"auto", E::kAuto}, {"always", E::kAlways}, {"never", E::kNever}}};
};
