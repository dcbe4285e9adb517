#include "parallel/detail/mesh.h"

#include <utility>

#include <ATen/ops/zeros.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/sizes.h"
#include "parallel/detail/c10d_impl.h"

namespace retort::parallel::detail {
namespace {

constexpr int kCollectiveTagBits = 29;

}  // namespace

// The store that Gloo sees: the addresses of the members, in this process. It asks for the address
// of a rank when it first connects to it, which may be long after the launcher is gone.
class AddressBook final : public c10d::HashStore {
 public:
  // Gloo leaves its own address, under a key that ends in its position.
  void set(const std::string& key, const std::vector<uint8_t>& address) override {
    own_key_ = key;
    own_address_ = {address.begin(), address.end()};
    c10d::HashStore::set(key, address);
  }
  const std::string& own_address() const { return own_address_; }

  void learn(int own_position, int position, const std::string& address) {
    const size_t prefix = own_key_.size() - std::to_string(own_position).size();
    c10d::HashStore::set(own_key_.substr(0, prefix) + std::to_string(position),
                         {address.begin(), address.end()});
  }

 private:
  std::string own_key_, own_address_;
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

Mesh::Mesh(Options options)
    : options_(std::move(options)), addresses_(c10::make_intrusive<AddressBook>()) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options_.timeout);
  gloo_options->devices = {options_.device};
  gloo_options->threads = 1;  // one queue: collectives run in the order of the calls
  try {
    gloo_ = c10::make_intrusive<GlooGroup>(addresses_, options_.position,
                                           to_int(options_.ranks.size()), std::move(gloo_options));
  } catch (const std::exception& e) {
    throw unconnected(options_.name, options_.ranks[to_size(options_.position)], "connect", e);
  }
}

Mesh::~Mesh() = default;

std::string Mesh::address() const { return addresses_->own_address(); }

std::string Mesh::key(int position) const {
  return "mesh/" + options_.name + "/" + std::to_string(options_.ranks.front()) + "/" +
         std::to_string(position);
}

void Mesh::connect(const std::vector<std::string>& addresses) {
  const int size = to_int(options_.ranks.size());
  for (int position = 0; position < size; ++position)
    if (position != options_.position)
      addresses_->learn(options_.position, position, addresses[to_size(position)]);

  // A word to both neighbours, who are one and the same in a mesh of two.
  std::vector<int> neighbours{(options_.position + 1) % size};
  if (size > 2) neighbours.push_back((options_.position + size - 1) % size);
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  try {
    for (const int neighbour : neighbours) {
      std::vector<at::Tensor> heard{at::zeros({1})}, said{at::zeros({1})};
      works.push_back(gloo_->recv(heard, neighbour, /*tag=*/0));
      works.push_back(gloo_->send(said, neighbour, /*tag=*/0));
    }
    for (const auto& work : works)
      work->wait();
  } catch (const std::exception& e) {
    throw unconnected(options_.name, options_.ranks[to_size(options_.position)], "connect", e);
  }
}

int Mesh::add_group() {
  const int group = to_int(next_tags_.size());
  RETORT_CHECK(group < kMaxGroups) << "more groups than tags for them";
  next_tags_.push_back(static_cast<uint32_t>(group) << kCollectiveTagBits);
  return group;
}

c10d::Backend& Mesh::backend() { return *gloo_; }

}  // namespace retort::parallel::detail
