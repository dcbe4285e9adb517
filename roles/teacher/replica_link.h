// The messages that the ranks of one replica of a teacher send each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "parallel/world.h"
#include "roles/teacher/methods.h"

namespace retort::roles {

// The leader, the first rank of world.mp(), broadcasts what all ranks of the replica do next.
//
// Use:
//   the leader       announce(requests) ... keep_alive() ... announce(requests) ... stop()
//   the other ranks  receive() until it says kStop
// Collectives: one broadcast on world.mp() for each message. Without a world none: nothing is sent.
// Errors: the group's, when a rank is lost.
// Threads: compute.
class ReplicaLink {
 public:
  struct Message {
    enum class Kind : uint8_t { kNothing, kCompute, kStop };
    Kind kind = Kind::kNothing;
    RequestBatch batch;  // kCompute
    template <class A>
    void serialize(A& archive) {
      archive(kind, batch);
    }
  };

  // `world`: of the role; null: a replica of one rank. Must outlive the link.
  explicit ReplicaLink(parallel::World* world);

  bool alone() const { return world_ == nullptr; }
  bool leads() const { return alone() || world_->mp().rank() == 0; }

  // Called on the leader: all ranks compute these next.
  void announce(const RequestBatch& batch);
  // Called on the leader, often, while there is nothing to announce: now and then it says so,
  // because the other ranks wait no longer than the world's timeout.
  void keep_alive();
  // Called on the leader, at the end.
  void stop();

  // Called on the other ranks: waits for the next message.
  Message receive();

 private:
  void send(const Message& message);

  parallel::World* world_;
  std::chrono::steady_clock::time_point last_message_;
};

}  // namespace retort::roles
