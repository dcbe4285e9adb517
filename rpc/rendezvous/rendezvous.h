// The run's store: where the processes of a run put down and find their addresses, and where the
// process groups of c10d meet. Every connection proves the run's secret; off loopback it is
// encrypted.
//
// Use: the launcher keeps a RendezvousServer for as long as the run lives and tells each process
//   its host and port. A process makes a ConnectStore of what it knows, and calls it for every
//   store that it needs; all of them see the same keys, over one connection.
//     RendezvousServer server({.run = run, .secret = secret});
//     const ConnectStore connect = store_connector({.name = "student/0", .run = run, ...});
//     c10::intrusive_ptr<c10d::Store> store = connect(host, port, timeout);
// Encryption: both ends must come to the same answer. kAuto means none where the host is a loopback
//   address or "localhost", and TLS 1.3 with the run's secret everywhere else.
// Threads: any but loop threads. A store may be used by many threads at a time
//   (rpc/rendezvous/store_client.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rpc/launcher_port/rendezvous_access.h"
#include "rpc/supervision/supervision.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace retort::rpc {

namespace rendezvous {
class StoreServer;
}  // namespace rendezvous

namespace supervision {
class SupervisionServer;
}  // namespace supervision

class RendezvousServer {
 public:
  // `bind` and `ports` as RpcOptions has them. kInvalidArgument for what they cannot be,
  // kUnavailable if it cannot listen there.
  explicit RendezvousServer(const RendezvousAccess& access, const std::string& bind = "auto",
                            const std::string& ports = "0", SupervisionTimes times = {});
  ~RendezvousServer();

  // The numeric address and the port that it listens at.
  const std::string& host() const { return host_; }
  uint16_t port() const;
  // The connections of the run's processes that tell how they are; at the same port.
  SupervisionPort& supervision();

 private:
  std::string host_;
  std::shared_ptr<supervision::SupervisionServer> supervision_;
  std::unique_ptr<rendezvous::StoreServer> server_;
};

// Connects to the run's store, trying again until the timeout while nobody answers; the timeout is
// then that of every call of the store. Stores that one connector (or a copy of it) made share a
// connection; when that is lost the next store gets a new one. Throws kTimeout, kUnauthenticated or
// kMismatch; what the store itself throws is c10d's (rpc/rendezvous/store_client.h).
using ConnectStore = std::function<c10::intrusive_ptr<c10d::Store>(
    const std::string& host, uint16_t port, std::chrono::milliseconds timeout)>;
struct StorePlace {
  std::string host;
  uint16_t port = 0;
};
// `where`: says where the store is by now, which then counts instead of what a caller was told when
// it began; null: where the caller says.
ConnectStore store_connector(RendezvousAccess access, std::function<StorePlace()> where = {});

}  // namespace retort::rpc
