// The connections of one set of ranks, which all groups of exactly these ranks share: each rank is
// connected to every other from the start. Its address and those of the others pass through the
// run's store once, in one question; the store is not asked again.
//
// Collectives: the constructor, by all ranks, in the same order for all meshes.
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

// That this rank could not connect to the other members of a group; `op`: for which operations.
Error unconnected(const std::string& group, int rank, const char* op, const std::exception& e);

class Mesh {
 public:
  struct Options {
    std::string name;  // of the first group that uses it
    std::vector<int> ranks;
    int position = 0;  // of this rank in `ranks`
    std::chrono::milliseconds timeout{0};
    StoreClient store;
    std::shared_ptr<gloo::transport::Device> device;
  };
  // kTimeout or kCollective naming group and rank if a member cannot be reached.
  explicit Mesh(Options options);
  ~Mesh();

  const std::vector<int>& ranks() const { return options_.ranks; }

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
  c10::intrusive_ptr<GlooGroup> gloo_;
};

}  // namespace retort::parallel::detail
