// The connections of one set of ranks, which all groups of exactly these ranks share.
//
// Making one waits for nobody: a rank listens and leaves its address in the store. Gloo connects
// two ranks when one of them first has something for the other (its lazy devices), so a group that
// is never used has no connection, and the order in which groups are first used is free. A sum or a
// barrier needs a rank's neighbours in a ring or a tree, not all ranks; an exchange needs all.
//
// Collectives: all ranks make the mesh, and know that the others have (World waits for them) before
//   an operation starts: it would wait for the address of a rank that has none.
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

class GlooGroup;

class Mesh {
 public:
  struct Options {
    std::string place;  // the mesh's name in the store, under the world's prefix
    std::vector<int> ranks;
    int position = 0;  // of this rank in `ranks`
    std::chrono::milliseconds timeout{0};
    StoreClient store;
    // Of this mesh alone: a device that connects later belongs to one context of Gloo's.
    std::shared_ptr<gloo::transport::Device> device;
  };
  // kTimeout or kCollective if the address cannot be left.
  explicit Mesh(const Options& options);
  ~Mesh();

  const std::vector<int>& ranks() const { return ranks_; }

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

  const std::vector<int> ranks_;
  std::vector<uint32_t> next_tags_;  // of each group's collectives
  c10::intrusive_ptr<GlooGroup> gloo_;
};

}  // namespace retort::parallel::detail
