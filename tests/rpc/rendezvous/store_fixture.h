// Stores for tests: ours, plain and under TLS, and c10d's own, behind one interface.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "rpc/rendezvous/store_client.h"
#include "rpc/rendezvous/store_server.h"

namespace retort::rpc::rendezvous::testing {

using namespace std::chrono_literals;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

inline Deadline soon() { return Deadline::after(60s); }

// Of one run: the same secret, run and schema.
transport::Identity identity_of(std::string name);
transport::StreamFactory streams(bool tls);
// At 127.0.0.1, port 0: any.
StoreServerOptions server_options(uint16_t port = 0);

inline constexpr bool kPlain = false;
inline constexpr bool kTls = true;

std::unique_ptr<StoreServer> make_server(bool tls = kPlain,
                                         StoreServerOptions options = server_options());
std::shared_ptr<StoreSession> make_session(uint16_t port, bool tls = kPlain,
                                           const StoreLimits& limits = {});
StorePtr connect(uint16_t port, bool tls = kPlain, std::chrono::milliseconds timeout = 60s);

// A server of some kind, and clients of it.
class StoreHost {
 public:
  virtual ~StoreHost() = default;
  virtual StorePtr connect() = 0;
};
// "tcp": c10d::TCPStore, "own", "own_tls".
std::unique_ptr<StoreHost> make_host(const std::string& kind);

std::vector<uint8_t> bytes(const std::string& value);
std::string text(const std::vector<uint8_t>& value);

}  // namespace retort::rpc::rendezvous::testing
