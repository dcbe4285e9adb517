// The connections of one set of ranks, which all groups of exactly these ranks share.
//
// A rank listens at one port. Neighbours in the ring of ranks connect when the world is made: what
// sums and what stages of a pipeline need. Any other two connect when one of them first has
// something for the other (Gloo's lazy devices), by the addresses that every rank has from the
// start: the run's store is not asked again. A sum needs a rank's neighbours in the ring, a barrier
// or a broadcast log2 of the ranks, an exchange all of them.
//
// Collectives: the constructor and connect(), by all ranks, in the same order for all meshes; World
//   waits for all ranks between the two.
// Tags: operations of two groups never meet, though they use the same connections: each group has
//   tags of its own. They wait in one queue, though: the ranks must agree on the order of all
//   operations of the groups that share a mesh.
// Errors: a failure makes every group of the mesh unusable: Gloo closes all of its connections.
// Threads: compute.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/error.h"
#include "parallel/world.h"

namespace gloo::transport {
class Device;
}  // namespace gloo::transport

namespace retort::parallel::detail {

class AddressBook;
class GlooGroup;

// That this rank could not connect to the other members of a group; `op`: for which operations.
Error unconnected(const std::string& group, int rank, const char* op, const std::exception& e);

class Mesh {
 public:
  struct Options {
    std::string name;  // of the first group that uses it, for errors
    std::vector<int> ranks;
    int position = 0;  // of this rank in `ranks`
    std::chrono::milliseconds timeout{0};
    // Of this mesh alone: a device that connects later belongs to one context of Gloo's.
    std::shared_ptr<gloo::transport::Device> device;
  };
  // Listens. kCollective if it cannot.
  explicit Mesh(Options options);
  ~Mesh();

  const std::vector<int>& ranks() const { return options_.ranks; }

  // Where this rank listens, and the key of that in the store for the member at `position`.
  std::string address() const;
  std::string key(int position) const;

  // Takes what address() is at each member, by position, and connects this rank with its
  // neighbours. kTimeout or kCollective naming group and rank if one of them cannot be reached.
  void connect(const std::vector<std::string>& addresses);

  // A number below kMaxGroups for a group that shares this mesh. All ranks add the same groups in
  // the same order.
  static constexpr int kMaxGroups = 8;
  int add_group();

  // Starts one operation of that group.
  template <class F>
  c10::intrusive_ptr<c10d::Work> start(int group, F&& operation) {
    const OwnTags tags(*this, group);
    return operation(backend());
  }

  // The tag of a message between two ranks; `tag` < kMaxTags is the group's own affair.
  static constexpr int kTagBits = 28;
  static constexpr int kMaxTags = 1 << kTagBits;
  static int message_tag(int group, int tag) { return (group << kTagBits) | tag; }

  // The first failure of any operation on these connections.
  std::optional<Error> failure;

 private:
  // Has the collectives of one group take their tags from its own count.
  class OwnTags {
   public:
    OwnTags(Mesh& mesh, int group);
    ~OwnTags();
    OwnTags(const OwnTags&) = delete;
    OwnTags& operator=(const OwnTags&) = delete;

   private:
    Mesh& mesh_;
    const int group_;
  };

  c10d::Backend& backend();

  const Options options_;
  std::vector<uint32_t> next_tags_;  // of each group's collectives
  c10::intrusive_ptr<AddressBook> addresses_;
  c10::intrusive_ptr<GlooGroup> gloo_;
};

}  // namespace retort::parallel::detail
