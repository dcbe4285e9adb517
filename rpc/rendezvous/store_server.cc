#include "rpc/rendezvous/store_server.h"

#include <utility>

#include "base/future.h"
#include "base/log.h"
#include "rpc/network/peer_address.h"

namespace retort::rpc::rendezvous {

StoreServer::StoreServer(transport::Identity identity, transport::StreamFactory streams,
                         StoreServerOptions options)
    : limits_(options.limits),
      loop_(std::make_shared<rpc::detail::Loop>()),
      state_(limits_,
             [this](uint64_t connection, const StoreReply& reply) { answer(connection, reply); }),
      timer_(loop_->io()),
      supervision_(std::move(options.supervision)) {
  transport::AcceptorHandlers handlers;
  handlers.on_control = [this](std::shared_ptr<transport::Stream> stream,
                               const transport::Proven& who) { welcome(std::move(stream), who); };
  if (supervision_) {
    supervision_->attach(loop_);
    handlers.on_supervision = [this](std::shared_ptr<transport::Stream> stream,
                                     const transport::Proven& who) {
      supervision_->welcome(std::move(stream), who);
    };
  }
  acceptor_ =
      std::make_shared<transport::Acceptor>(loop_, std::move(options.acceptor), std::move(identity),
                                            std::move(streams), std::move(handlers));
  acceptor_->start();
  loop_->start();
}

StoreServer::~StoreServer() {
  // All this belongs to the loop's thread, so it is closed there; stop() waits for that.
  loop_->post([this] {
    closing_ = true;
    acceptor_->close();
    timer_.cancel();
    for (const auto& [id, connection] : connections_)
      connection->close();
    if (supervision_) supervision_->close();
  });
  loop_->stop();
}

uint16_t StoreServer::port() const {
  const rpc::detail::PeerAddress address =
      rpc::detail::parse_address(acceptor_->addresses().front());
  return static_cast<uint16_t>(std::stoi(address.port));
}

StoreStats StoreServer::stats() {
  Promise<StoreStats> promise;
  Future<StoreStats> stats = promise.future();
  // The numbers belong to the loop's thread, so they are read there.
  loop_->post([this, promise]() mutable {
    promise.set_value({.connections = connections_.size(),
                       .keys = state_.num_keys(),
                       .stored_bytes = state_.stored_bytes(),
                       .waiters = state_.num_waiters(),
                       .requests = num_requests_});
  });
  return stats.get();
}

void StoreServer::welcome(std::shared_ptr<transport::Stream> stream, const transport::Proven& who) {
  const uint64_t id = next_connection_++;
  const auto connection = std::make_shared<launcher_port::FrameConnection>(
      loop_->io(), std::move(stream), limits_.frames());
  connections_.emplace(id, connection);
  connection->start([this, id](std::string_view content) { on_request(id, content); },
                    [this, id, peer = who.peer](const Error& error) { on_end(id, peer, error); });
}

void StoreServer::on_request(uint64_t connection, std::string_view content) {
  ++num_requests_;
  state_.handle(connection, from_bytes<StoreRequest>(content), Deadline::Clock::now());
  arm();
}

void StoreServer::on_end(uint64_t connection, const std::string& peer, const Error& error) {
  // A process that ends closes its connection: that is no news.
  if (error.code() == ErrorCode::kCorrupt) {
    RETORT_LOG(kWarning) << "the store dropped a connection of " << peer << ": " << error.what();
  } else {
    RETORT_LOG(kDebug) << "the store's connection to " << peer << " ended: " << error.what();
  }
  state_.forget(connection);
  connections_.erase(connection);
  arm();
}

void StoreServer::answer(uint64_t connection, const StoreReply& reply) {
  const auto found = connections_.find(connection);
  if (found != connections_.end()) found->second->send(frame_of(reply));
}

void StoreServer::arm() {
  const auto next = state_.next_deadline();
  if (closing_ || next == armed_for_) return;
  armed_for_ = next;
  if (!next) {
    timer_.cancel();
    return;
  }

  // Setting a new time cancels the wait for the old one.
  timer_.expires_at(*next);
  timer_.async_wait([this](const boost::system::error_code& code) {
    if (code) return;
    armed_for_.reset();
    state_.expire(Deadline::Clock::now());
    arm();
  });
}

}  // namespace retort::rpc::rendezvous
