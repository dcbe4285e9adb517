#include "roles/generator/weight_checksum.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <span>

#include "base/checksum.h"
#include "rpc/device_transfer.h"

namespace retort::roles {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

at::ScalarType integer_of(int64_t bytes) {
  switch (bytes) {
    case 1: return at::kChar;
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

// Sums the bits of each element times an odd number of its place, modulo 2^64. One element that is
// wrong changes the sum, and the order of adding does not.
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

// Makes one number of where the part begins; 0 for what begins at 0, whatever its dimensions.
uint64_t place_of(const WeightPart& part) {
  uint64_t place = 0;
  for (const int64_t begin : part.begin)
    place = place * kOdd + static_cast<uint64_t>(begin);
  return place;
}

uint64_t with_name(const WeightPart& part, uint64_t of_values) {
  return checksum64(std::as_bytes(std::span(part.name)), of_values);
}

// Returns memory for a copy of a part's values: that of `earlier` if only its bucket holds it.
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

}  // namespace

uint64_t part_checksum(const WeightPart& part) {
  const at::Tensor flat = part.values.contiguous();
  if (flat.is_cpu()) return with_name(part, checksum64(bytes_of(flat), place_of(part)));
  const uint64_t sum = device_checksum(flat);
  return with_name(part, checksum64(std::as_bytes(std::span(&sum, 1)), place_of(part)));
}

uint64_t combined_checksum(uint64_t running, uint64_t checksum) {
  return checksum64(std::as_bytes(std::span(&checksum, 1)), running);
}

uint64_t seal(WeightBucket& bucket, uint64_t running, bool on_device) {
  for (WeightPart& part : bucket.parts) {
    part.values = on_device ? part.values.contiguous() : rpc::host_copy(part.values);
    part.checksum = part_checksum(part);
    running = combined_checksum(running, part.checksum);
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

    // Where it can be, the values are copied and summed in one pass over memory.
    const bool in_one_pass = source.is_cpu() && source.is_contiguous();
    if (in_one_pass) {
      auto* to = static_cast<std::byte*>(part.values.mutable_data_ptr());
      part.checksum = with_name(part, copy_with_checksum64(to, bytes_of(source), place_of(part)));
    } else {
      if (!to_host) part.values.copy_(source);
      part.checksum = part_checksum(part);
    }
    running = combined_checksum(running, part.checksum);
  }
  return running;
}

uint64_t weights_checksum(const std::vector<uint64_t>& of_ranks) {
  uint64_t running = 0;
  for (const uint64_t checksum : of_ranks)
    running = combined_checksum(running, checksum);
  return running;
}

uint64_t weights_checksum(const std::vector<WeightReceipt>& receipts) {
  // Each rank of the replica has a checksum over its receipts; that of the replica is over those of
  // its ranks, in order.
  std::map<int64_t, uint64_t> of_ranks;
  for (const WeightReceipt& receipt : receipts) {
    uint64_t& running = of_ranks[receipt.receiver];
    running = combined_checksum(running, receipt.checksum);
  }
  std::vector<uint64_t> in_order;
  for (const auto& [rank, checksum] : of_ranks)
    in_order.push_back(checksum);
  return weights_checksum(in_order);
}

}  // namespace retort::roles
