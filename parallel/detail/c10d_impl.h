// What the public classes hide: c10d's store and process groups, and how to read c10d's exceptions.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "parallel/group.h"
#include "parallel/world.h"

namespace retort::parallel {

struct StoreClient::Impl {
  c10::intrusive_ptr<c10d::Store> store;
  std::string prefix;
  std::string address;  // "host:port", for errors
};

namespace detail {
class DeviceWatch;
class Mesh;
struct WatchedGroup;
}  // namespace detail

struct Group::Impl {
  std::string name;
  std::vector<int> ranks;
  int position = 0;  // of this rank in `ranks`
  std::chrono::milliseconds timeout{0};
  std::shared_ptr<detail::Mesh> mesh;  // its connections; null: a group of one rank
  int place_in_mesh = 0;               // its number among the groups that share them
  // Collectives of tensors on a device have this backend. Null on the CPU, where ranks share a
  // device, and in groups that carry no tensors of devices.
  c10::intrusive_ptr<c10d::Backend> device_backend;
  std::shared_ptr<detail::WatchedGroup> watched;
  // The world's, over all groups that have a backend; any group of the world asks it.
  std::shared_ptr<detail::DeviceWatch> watch;
  uint64_t sequence = 0;  // of the last operation
  // Counts the collectives that are made of messages (group.cc); all members count alike, and
  // each takes its tags from the count.
  uint64_t num_exchanges = 0;
  std::optional<Error> failure;  // the first one; the group is unusable from then on

  // Votes of this rank that are open, one inside of another (vote.h).
  int open_votes = 0;
  // Set while votes are open that need not be cast any more: a rank failed in one of them, the
  // outermost that has ended.
  struct EndedVote {
    int depth = 0;  // how many open votes lie around it
    Error error;
  };
  std::optional<EndedVote> ended_vote;
};

namespace detail {

// The message of an exception of c10d or Gloo: its first line, without the C++ backtrace.
std::string first_line(const std::exception& e);
// c10d and Gloo tell a timeout apart from other failures by their text only.
bool says_timeout(const std::string& message);

}  // namespace detail
}  // namespace retort::parallel
