#include "roles/generator/weight_staging.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>

#include "base/checksum.h"
#include "base/error.h"
#include "base/hash.h"
#include "models/checkpoint.h"
#include "roles/generator/weight_box.h"
#include "rpc/device_transfer.h"

namespace retort::roles {
namespace {

// The part of a tensor that starts at `origin` of the whole.
at::Tensor view_of(at::Tensor values, const std::vector<int64_t>& origin, const Box& box) {
  for (size_t d = 0; d < origin.size(); ++d)
    values = values.narrow(static_cast<int64_t>(d), box.begin[d] - origin[d], box.size[d]);
  return values;
}

WeightSlice slice_of(const parallel::NamedParameter& parameter) {
  const std::vector<int64_t> size = parameter.value.sizes().vec();
  WeightSlice slice{.name = parameter.name,
                    .shape = size,
                    .begin = std::vector<int64_t>(size.size(), 0),
                    .size = size};
  if (!parameter.shard.shape.empty()) {
    slice.shape = parameter.shard.shape;
    slice.begin.at(static_cast<size_t>(parameter.shard.dim)) = parameter.shard.begin;
  }
  return slice;
}

Box box_of(const WeightPart& part) { return {part.begin, part.values.sizes().vec()}; }

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

at::ScalarType integer_of(int64_t bytes) {
  switch (bytes) {
    case 1: return at::kChar;
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

// The sum of each element's bits times an odd number of its place, modulo 2^64: one element that is
// wrong changes it, and the order of adding does not.
uint64_t device_checksum(const at::Tensor& flat) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;  // 32 MiB for each of three tensors
  const at::Tensor bits = flat.view({-1}).view(integer_of(flat.element_size()));
  at::Tensor sum = at::zeros({}, flat.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < bits.numel(); begin += kAtOnce) {
    const int64_t end = std::min(begin + kAtOnce, bits.numel());
    const at::Tensor factors = at::arange(begin + 1, end + 1, sum.options())
                                   .mul_(static_cast<int64_t>(kOdd))
                                   .bitwise_or_(1);
    sum += factors.mul_(bits.narrow(0, begin, end - begin)).sum();
  }
  return static_cast<uint64_t>(sum.item<int64_t>());
}

std::span<const std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<const std::byte*>(flat.const_data_ptr()), static_cast<size_t>(flat.nbytes())};
}

// 0 for what starts at 0, whatever its dimensions.
uint64_t place_of(const WeightPart& part) {
  uint64_t place = 0;
  for (const int64_t begin : part.begin)
    place = place * kOdd + static_cast<uint64_t>(begin);
  return place;
}

uint64_t with_name(const WeightPart& part, uint64_t of_values) {
  return checksum64(std::as_bytes(std::span(part.name)), of_values);
}

uint64_t checksum_of(const at::Tensor& values, const WeightPart& part) {
  const at::Tensor flat = values.contiguous();
  if (flat.is_cpu()) return with_name(part, checksum64(bytes_of(flat), place_of(part)));
  const uint64_t sum = device_checksum(flat);
  return with_name(part, checksum64(std::as_bytes(std::span(&sum, 1)), place_of(part)));
}

// Memory for a copy of a part's values: that of `earlier` if only its bucket holds it.
at::Tensor memory_for(const WeightPart& part, const WeightPart* earlier) {
  const at::Tensor& values = part.values;
  const bool same = earlier && earlier->values.defined() && earlier->name == part.name &&
                    earlier->values.sizes() == values.sizes() &&
                    earlier->values.dtype() == values.dtype() &&
                    earlier->values.device() == values.device();
  if (same && earlier->values.use_count() == 1 && earlier->values.storage().use_count() == 1)
    return earlier->values;
  return at::empty(values.sizes(), values.options());
}

uint64_t combined(uint64_t running, uint64_t checksum) {
  return checksum64(std::as_bytes(std::span(&checksum, 1)), running);
}

}  // namespace

std::vector<WeightSlice> weight_slices(const models::Decoder& decoder) {
  std::vector<WeightSlice> slices;
  for (const parallel::NamedParameter& parameter : decoder.parameters())
    slices.push_back(slice_of(parameter));
  return slices;
}

std::vector<WeightBucket> make_weight_buckets(const models::Decoder& decoder,
                                              const std::vector<WeightSlice>& held,
                                              uint64_t version, int64_t bucket_bytes,
                                              int64_t sender) {
  std::map<std::string, const WeightSlice*> wanted;
  for (const WeightSlice& slice : held)
    wanted[slice.name] = &slice;

  std::vector<WeightBucket> buckets;
  int64_t room = 0;
  for (const parallel::NamedParameter& parameter : decoder.parameters()) {
    const auto found = wanted.find(parameter.name);
    if (!parameter.shard.counted || found == wanted.end()) continue;

    // What both have of it.
    const WeightSlice own = slice_of(parameter);
    if (own.shape != found->second->shape || found->second->begin.size() != own.shape.size() ||
        found->second->size.size() != own.shape.size())
      throw Error(ErrorCode::kMismatch,
                  "the generator's parameter has another shape than the student's")
          .with("parameter", parameter.name);
    const Box box =
        intersection({own.begin, own.size}, {found->second->begin, found->second->size});
    if (box.numel() == 0) continue;
    const at::Tensor values = view_of(parameter.value.detach(), own.begin, box);

    // As many rows as fit into what is left of a bucket, then a new one.
    const int64_t rows = box.size[0];
    const int64_t row_bytes = static_cast<int64_t>(values.nbytes()) / rows;
    for (int64_t begin = 0; begin < rows;) {
      if (room < row_bytes) {
        buckets.push_back({.version = version,
                           .sender = sender,
                           .index = static_cast<int64_t>(buckets.size()),
                           .parts = {}});
        room = std::max(bucket_bytes, row_bytes);
      }
      const int64_t count = std::min(rows - begin, room / row_bytes);
      std::vector<int64_t> at = box.begin;
      at[0] += begin;
      buckets.back().parts.push_back({.name = parameter.name,
                                      .begin = std::move(at),
                                      .values = values.narrow(0, begin, count)});
      room -= count * row_bytes;
      begin += count;
    }
  }
  return buckets;
}

uint64_t seal(WeightBucket& bucket, uint64_t running, bool on_device) {
  for (WeightPart& part : bucket.parts) {
    part.values = on_device ? part.values.contiguous() : rpc::host_copy(part.values);
    part.checksum = checksum_of(part.values, part);
    running = combined(running, part.checksum);
  }
  return running;
}

uint64_t seal_copy(WeightBucket& bucket, uint64_t running, bool on_device,
                   const WeightBucket* earlier) {
  for (size_t i = 0; i < bucket.parts.size(); ++i) {
    WeightPart& part = bucket.parts[i];
    const bool has_earlier = earlier && i < earlier->parts.size();
    const at::Tensor source = part.values;
    const bool to_host = !source.is_cpu() && !on_device;
    part.values = to_host ? rpc::host_copy(source)
                          : memory_for(part, has_earlier ? &earlier->parts[i] : nullptr);

    const bool in_one_pass = source.is_cpu() && source.is_contiguous();
    if (in_one_pass) {
      auto* to = static_cast<std::byte*>(part.values.mutable_data_ptr());
      part.checksum = with_name(part, copy_with_checksum64(to, bytes_of(source), place_of(part)));
    } else {
      if (!to_host) part.values.copy_(source);
      part.checksum = checksum_of(part.values, part);
    }
    running = combined(running, part.checksum);
  }
  return running;
}

uint64_t weights_checksum(const std::vector<uint64_t>& of_ranks) {
  uint64_t running = 0;
  for (const uint64_t checksum : of_ranks)
    running = combined(running, checksum);
  return running;
}

uint64_t weights_checksum(const std::vector<WeightReceipt>& receipts) {
  std::map<int64_t, uint64_t> of_ranks;
  for (const WeightReceipt& receipt : receipts) {
    uint64_t& running = of_ranks[receipt.receiver];
    running = combined(running, receipt.checksum);
  }
  std::vector<uint64_t> in_order;
  for (const auto& [rank, checksum] : of_ranks)
    in_order.push_back(checksum);
  return weights_checksum(in_order);
}

std::string parameters_hash(const models::Decoder& decoder) {
  Sha256 hash;
  hash.update(models::describe_function(decoder.config()) + "\n" +
              models::dtype_name(decoder.dtype()) + "\n");
  return hash.hex_digest().substr(0, 16);
}

WeightStaging::WeightStaging(models::Decoder& decoder) : decoder_(decoder) {
  for (const parallel::NamedParameter& parameter : decoder_.parameters())
    parameters_[parameter.name] = {parameter.value.scalar_type(), slice_of(parameter)};
}

void WeightStaging::check_part(const WeightPart& part, uint64_t version) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kCorrupt, "pushed weights: " + what)
        .with("parameter", part.name)
        .with("version", version);
  };

  const auto found = parameters_.find(part.name);
  if (found == parameters_.end())
    refuse("this model has no such parameter; trainer and generator must have one shape");
  const Own& own = found->second;
  const size_t dims = own.slice.begin.size();
  if (!part.values.defined() || part.values.scalar_type() != own.dtype ||
      part.values.dim() != static_cast<int64_t>(dims) || part.begin.size() != dims)
    refuse("shape or dtype differ from the generator's");

  // All of it lies within what this rank holds.
  for (size_t d = 0; d < part.begin.size(); ++d) {
    const int64_t before = own.slice.begin[d];
    if (part.begin[d] < before || part.begin[d] - before > own.slice.size[d] ||
        part.values.size(static_cast<int64_t>(d)) > own.slice.size[d] - (part.begin[d] - before))
      refuse(
          "shape or dtype differ from the generator's, or elements lie outside what this rank "
          "holds");
  }
  if (checksum_of(part.values, part) != part.checksum)
    refuse("the checksum differs: the values were damaged on their way");
}

// With the lock held.
void WeightStaging::check_due(uint64_t version) const {
  if (checked_ > 0)
    throw Error(ErrorCode::kUnavailable,
                "weights.bucket: weights of version " + std::to_string(checked_) +
                    " are committed and wait for samples in work; wait until they are in use");
  const auto refuse_late = [&](uint64_t there, const std::string& state) {
    throw Error(ErrorCode::kMismatch, "weights of version " + std::to_string(version) +
                                          " came, but version " + std::to_string(there) + " is " +
                                          state + " already");
  };
  if (version <= in_use_) refuse_late(in_use_, "in use");
  if (version < version_) refuse_late(version_, "staged");
}

void WeightStaging::add(WeightBucket bucket, const std::string& from) {
  {
    std::lock_guard lock(mutex_);
    check_due(bucket.version);
  }
  for (const WeightPart& part : bucket.parts) {
    rpc::use_on_current_stream(part.values);
    check_part(part, bucket.version);
  }

  // Meanwhile others may have been checked or put in use. Only a sound bucket of a newer version
  // makes what is staged worthless; that is freed without the lock.
  Buckets worthless;
  std::lock_guard lock(mutex_);
  check_due(bucket.version);
  if (bucket.version > version_) worthless.swap(buckets_);
  version_ = bucket.version;
  const std::pair<int64_t, int64_t> key{bucket.sender, bucket.index};
  buckets_.insert_or_assign(key, Staged{std::move(bucket), from});
}

bool WeightStaging::forget_lost(const std::function<std::set<std::string>()>& connected) {
  std::lock_guard lock(mutex_);
  if (checked_ > 0 || buckets_.empty()) return false;
  const std::set<std::string> there = connected();
  return std::erase_if(buckets_,
                       [&](const auto& entry) { return !there.contains(entry.second.from); }) > 0;
}

bool WeightStaging::empty() const {
  std::lock_guard lock(mutex_);
  return buckets_.empty();
}

uint64_t WeightStaging::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

uint64_t WeightStaging::checked() const {
  std::lock_guard lock(mutex_);
  return checked_;
}

uint64_t WeightStaging::check(const CommitWeights& commit) {
  std::lock_guard lock(mutex_);
  // What arrived of each sender: buckets, running checksum.
  std::map<int64_t, std::pair<int64_t, uint64_t>> arrived;
  for (const auto& [key, staged] : buckets_) {
    auto& [count, running] = arrived[key.first];
    ++count;
    for (const WeightPart& part : staged.bucket.parts)
      running = combined(running, part.checksum);
  }

  // It must be what the receipts for this rank say, of the senders that they name.
  const int64_t rank = decoder_.placement().tp_rank();
  const auto early = [&](const WeightReceipt& receipt, int64_t there) {
    throw Error(ErrorCode::kUnavailable, "a commit of pushed weights before all of them are there")
        .with("version", commit.version)
        .with("staged_version", version_)
        .with("sender", receipt.sender)
        .with("buckets", receipt.buckets)
        .with("staged_buckets", there);
  };
  uint64_t all = 0;
  std::vector<const WeightReceipt*> mine;
  for (const WeightReceipt& receipt : commit.receipts) {
    if (receipt.receiver != rank) continue;
    mine.push_back(&receipt);
    const auto [there, running] = arrived[receipt.sender];
    if (commit.version != version_ || there != receipt.buckets) early(receipt, there);
    all = combined(all, running);
    arrived.erase(receipt.sender);
  }
  if (mine.empty()) early({}, static_cast<int64_t>(buckets_.size()));
  if (!arrived.empty())
    throw Error(ErrorCode::kCorrupt,
                "pushed weights came from a sender that the commit does not name")
        .with("sender", arrived.begin()->first);

  check_complete();

  uint64_t stated = 0;
  for (const WeightReceipt* receipt : mine)
    stated = combined(stated, receipt->checksum);
  if (all != stated)
    throw Error(ErrorCode::kCorrupt,
                "the checksum of the pushed weights differs from the sender's");
  checked_ = version_;
  return all;
}

void WeightStaging::uncheck() {
  std::lock_guard lock(mutex_);
  checked_ = 0;
}

// Every element of every parameter once. With the lock held.
void WeightStaging::check_complete() const {
  std::map<std::string, std::vector<Box>> boxes;
  for (const auto& [key, staged] : buckets_)
    for (const WeightPart& part : staged.bucket.parts)
      boxes[part.name].push_back(box_of(part));
  for (const auto& [name, own] : parameters_) {
    std::vector<Box>& parts = boxes[name];
    const int64_t expected = Box{own.slice.begin, own.slice.size}.numel();
    int64_t count = 0;
    for (const Box& part : parts)
      count += part.numel();
    if (any_overlap(std::move(parts)))
      throw Error(ErrorCode::kCorrupt, "elements of pushed weights came twice")
          .with("parameter", name);
    if (count != expected)
      throw Error(ErrorCode::kCorrupt,
                  "pushed weights are incomplete: " + std::to_string(expected - count) + " of " +
                      std::to_string(expected) + " elements are missing")
          .with("parameter", name);
  }
}

void WeightStaging::apply() {
  const c10::NoGradGuard no_grad;
  // While checked_ says so nothing is added, and the values can be moved without the lock.
  Buckets staged;
  {
    std::lock_guard lock(mutex_);
    RETORT_CHECK(checked_ > 0) << "weights that were not checked";
    staged.swap(buckets_);
  }

  // The decoder's own tensors: what is set in them is set in the model.
  std::map<std::string, at::Tensor> own;
  for (const parallel::NamedParameter& parameter : decoder_.parameters())
    own[parameter.name] = parameter.value;

  // A whole parameter takes the place of what was there, a piece is copied into it.
  for (auto& [key, arrived] : staged)
    for (WeightPart& part : arrived.bucket.parts) {
      at::Tensor& parameter = own.at(part.name);
      rpc::use_on_current_stream(part.values);
      if (part.values.sizes() == parameter.sizes() && part.values.is_contiguous() &&
          part.values.device() == parameter.device())
        parameter.set_data(part.values);
      else
        view_of(parameter, parameters_.at(part.name).slice.begin, box_of(part)).copy_(part.values);
      part.values.reset();
    }

  std::lock_guard lock(mutex_);
  in_use_ = checked_;
  checked_ = 0;
  version_ = 0;
}

}  // namespace retort::roles
