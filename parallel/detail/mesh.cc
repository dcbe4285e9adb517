#include "parallel/detail/mesh.h"

#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/sizes.h"
#include "parallel/detail/c10d_impl.h"

namespace retort::parallel::detail {
namespace {

constexpr int kCollectiveTagBits = 29;

}  // namespace

// Gloo leaves its own address in this store, and asks it for those of all members, one by one. The
// book gets all of them with one question to the run's store.
class AddressBook final : public c10d::HashStore {
 public:
  AddressBook(const Mesh::Options& options, StoreClient store)
      : options_(options), store_(std::move(store)) {}

  // The keys are Gloo's and end in this rank's position; what stands before it is the prefix of the
  // other members' keys.
  void set(const std::string& key, const std::vector<uint8_t>& address) override {
    prefix_ = key.substr(0, key.size() - std::to_string(options_.position).size());
    store_.set(key_of(options_.position), {address.begin(), address.end()});
  }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    if (!check(keys)) learn_all(Deadline::after(timeout));
    c10d::HashStore::wait(keys, timeout);
  }
  using c10d::HashStore::wait;

 private:
  std::string key_of(int position) const {
    return "mesh/" + options_.name + "/" + std::to_string(options_.ranks.front()) + "/" +
           std::to_string(position);
  }

  void learn_all(Deadline deadline) {
    std::vector<std::string> keys;
    for (int position = 0; position < to_int(options_.ranks.size()); ++position)
      keys.push_back(key_of(position));
    int position = 0;
    for (const std::string& address : store_.get_all(keys, deadline))
      c10d::HashStore::set(prefix_ + std::to_string(position++), {address.begin(), address.end()});
  }

  const Mesh::Options& options_;
  StoreClient store_;
  std::string prefix_;
};

// c10d numbers the collectives of a process group by one count, which is part of their tags.
class GlooGroup final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  uint32_t next_tag() const { return collectiveCounter_; }
  void set_next_tag(uint32_t tag) { collectiveCounter_ = tag; }
};

Error unconnected(const std::string& group, int rank, const char* op, const std::exception& e) {
  const std::string why = first_line(e);
  return Error(says_timeout(why) ? ErrorCode::kTimeout : ErrorCode::kCollective,
               "the members of the group could not connect: " + why)
      .with("group", group)
      .with("rank", rank)
      .with("op", op);
}

Mesh::OwnTags::OwnTags(Mesh& mesh, int group) : mesh_(mesh), group_(group) {
  mesh_.gloo_->set_next_tag(mesh_.next_tags_[to_size(group)]);
}

// A group's count lies in the low bits, its number above; messages leave the count as it is.
Mesh::OwnTags::~OwnTags() {
  constexpr uint32_t kCount = (uint32_t{1} << kCollectiveTagBits) - 1;
  const uint32_t group = static_cast<uint32_t>(group_) << kCollectiveTagBits;
  mesh_.next_tags_[to_size(group_)] = group | (mesh_.gloo_->next_tag() & kCount);
}

Mesh::Mesh(Options options) : options_(std::move(options)) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options_.timeout);
  gloo_options->devices = {options_.device};
  gloo_options->threads = 1;  // one queue: collectives run in the order of the calls
  try {
    gloo_ = c10::make_intrusive<GlooGroup>(
        c10::make_intrusive<AddressBook>(options_, options_.store), options_.position,
        to_int(options_.ranks.size()), std::move(gloo_options));
  } catch (const std::exception& e) {
    throw unconnected(options_.name, options_.ranks[to_size(options_.position)], "connect", e);
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
