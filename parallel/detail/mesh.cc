#include "parallel/detail/mesh.h"

#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/sizes.h"
#include "parallel/detail/c10d_impl.h"

namespace retort::parallel::detail {
namespace {

constexpr int kCollectiveTagBits = 29;

}  // namespace

// c10d numbers the collectives of a process group by one count, which is part of their tags.
class GlooGroup final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  uint32_t next_tag() const { return collectiveCounter_; }
  void set_next_tag(uint32_t tag) { collectiveCounter_ = tag; }
};

Mesh::OwnTags::OwnTags(Mesh& mesh, int group) : mesh_(mesh), group_(group) {
  mesh_.gloo_->set_next_tag(mesh_.next_tags_[to_size(group)]);
}

// A group's count lies in the low bits, its number above; messages leave the count as it is.
Mesh::OwnTags::~OwnTags() {
  constexpr uint32_t kCount = (uint32_t{1} << kCollectiveTagBits) - 1;
  const uint32_t group = static_cast<uint32_t>(group_) << kCollectiveTagBits;
  mesh_.next_tags_[to_size(group_)] = group | (mesh_.gloo_->next_tag() & kCount);
}

Mesh::Mesh(const Options& options) : ranks_(options.ranks) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo_options->devices = {options.device};
  gloo_options->threads = 1;  // one queue: collectives run in the order of the calls
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      options.store.impl()->prefix + "mesh/" + options.place, options.store.impl()->store);
  try {
    gloo_ = c10::make_intrusive<GlooGroup>(std::move(store), options.position,
                                           to_int(ranks_.size()), std::move(gloo_options));
  } catch (const std::exception& e) {
    const std::string why = first_line(e);
    throw Error(says_timeout(why) ? ErrorCode::kTimeout : ErrorCode::kCollective,
                "the network of a group cannot be set up: " + why)
        .with("group", options.place)
        .with("rank", ranks_[to_size(options.position)]);
  }
}

Mesh::~Mesh() = default;

int Mesh::add_group() {
  const int group = to_int(next_tags_.size());
  RETORT_CHECK(group < kMaxGroups) << "more groups than tags for them";
  next_tags_.push_back(static_cast<uint32_t>(group) << kCollectiveTagBits);
  return group;
}

c10d::Backend& Mesh::backend() { return *gloo_; }

}  // namespace retort::parallel::detail
