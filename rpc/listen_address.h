// Where a process of a run listens, and what the processes of a run agree on by the address at
// which they meet.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "rpc/options.h"

namespace retort::rpc {

// The numeric address at which a process of this host listens, for its RPC and for collectives.
//   bind        as RpcOptions::bind; auto: the address of this host on the way to the rendezvous,
//               which is a loopback address where that is one
//   rendezvous  the host of the run's store, as every process of the run knows it
// A name that leads back to this host itself (Debian's /etc/hosts names 127.0.1.1) is no address
// for others: then it is the only one that leads out of this host.
// Errors: those of choose_address() (base/network_interfaces.h), which list this host's addresses;
//   kUnavailable where no route leads to the rendezvous.
std::string listen_address(const std::string& bind, const std::string& rendezvous, uint16_t port);

// The numeric address at which this host serves the rendezvous that others know by this name: that
// of the name if it is one of this host, else listen_address().
std::string rendezvous_address(const std::string& bind, const std::string& rendezvous,
                               uint16_t port);

// kAlways or kNever, from the text alone: every process of a run that knows its rendezvous by this
// name comes to the same answer.
Encryption settled_encryption(Encryption encryption, const std::string& rendezvous);

// How many of the ports of `ports` (RpcOptions::port) can be listened at here and now; counted up
// to `wanted`. kInvalidArgument for ports that are none.
int64_t count_free_ports(const std::string& ports, const std::string& address, int64_t wanted);

// True if it is of a port, or of a range of them, that other processes listen at: another one does.
bool is_port_taken(const Error& error);

// "host:port" or "[ipv6]:port" in two; kInvalidArgument.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
HostPort parse_host_port(const std::string& address);

}  // namespace retort::rpc
