#include "tests/rpc/rendezvous/store_fixture.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "rpc/launcher_port/store_identity.h"
#include "rpc/transport/tls_context.h"

namespace retort::rpc::rendezvous::testing {
namespace {

class TcpHost final : public StoreHost {
 public:
  TcpHost() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    server_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  StorePtr connect() override {
    c10d::TCPStoreOptions options;
    options.port = server_->getPort();
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> server_;
};

class OwnHost final : public StoreHost {
 public:
  explicit OwnHost(bool tls) : tls_(tls), server_(make_server(tls)) {}
  StorePtr connect() override { return testing::connect(server_->port(), tls_); }

 private:
  const bool tls_;
  const std::unique_ptr<StoreServer> server_;
};

}  // namespace

transport::Identity identity_of(std::string name) {
  return {.name = std::move(name),
          .run = "run 7",
          .schema = launcher_port::kStoreSchema,
          .credentials = {{"run", "the secret of these tests"}}};
}

transport::StreamFactory streams(bool tls) {
  if (!tls) return transport::StreamFactory();
  return transport::StreamFactory(
      std::make_shared<transport::TlsContext>(identity_of("any").credentials));
}

StoreServerOptions server_options(uint16_t port) {
  StoreServerOptions options;
  options.acceptor.ports = {.first = port, .last = port};
  options.acceptor.proof_timeout = 60'000ms;  // however slow the machine
  return options;
}

std::unique_ptr<StoreServer> make_server(bool tls, StoreServerOptions options) {
  return std::make_unique<StoreServer>(identity_of(launcher_port::kStoreName), streams(tls),
                                       std::move(options));
}

std::shared_ptr<StoreSession> make_session(uint16_t port, bool tls, const StoreLimits& limits) {
  return std::make_shared<StoreSession>(identity_of("student/0"), streams(tls), "127.0.0.1", port,
                                        soon(), limits);
}

StorePtr connect(uint16_t port, bool tls, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<StoreClient>(make_session(port, tls), timeout);
}

std::unique_ptr<StoreHost> make_host(const std::string& kind) {
  if (kind == "tcp") return std::make_unique<TcpHost>();
  return std::make_unique<OwnHost>(kind == "own_tls");
}

std::vector<uint8_t> bytes(const std::string& value) { return {value.begin(), value.end()}; }
std::string text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }

}  // namespace retort::rpc::rendezvous::testing
