#include "roles/teacher/replica_link.h"

#include "rpc/archive.h"

namespace retort::roles {
namespace {

// The leader sends this many messages in the time after which the other ranks give up waiting for
// one.
constexpr int kMessagesPerTimeout = 8;

}  // namespace

ReplicaLink::ReplicaLink(parallel::World* world)
    : world_(world), last_message_(std::chrono::steady_clock::now()) {}

void ReplicaLink::announce(const RequestBatch& batch) {
  if (!alone()) send({.kind = Message::Kind::kCompute, .batch = batch});
}

void ReplicaLink::keep_alive() {
  if (alone()) return;
  const auto silence = std::chrono::steady_clock::now() - last_message_;
  if (silence > world_->options().timeout / kMessagesPerTimeout) send({});
}

void ReplicaLink::stop() {
  if (!alone()) send({.kind = Message::Kind::kStop, .batch = {}});
}

void ReplicaLink::send(const Message& message) {
  world_->mp().broadcast(rpc::to_bytes(message), 0);
  last_message_ = std::chrono::steady_clock::now();
}

ReplicaLink::Message ReplicaLink::receive() {
  return rpc::from_bytes<Message>(world_->mp().broadcast("", 0));
}

}  // namespace retort::roles
