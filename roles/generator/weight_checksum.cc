#include "roles/generator/weight_checksum.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <span>

#include "base/checksum.h"
#include "base/sizes.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"
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

// A device's sum of a tensor: the bits of each element times an odd number of its place, modulo
// 2^64. One element that is wrong changes the sum, and the order of adding does not.
at::Tensor sum_by_operators(const at::Tensor& flat) {
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
  return sum;
}

// As ChecksumTensor of kernels/checksum.cuh.
struct KernelRow {
  const void* data;
  int64_t bytes;
  int64_t first_chunk;
  int64_t element_bytes;
};

// The same sums by our kernel, of all tensors in one launch.
void add_sums_by_kernel(const std::vector<at::Tensor>& tensors, at::Tensor sums) {
  constexpr int64_t kThreadBytes = 64, kWarp = 32;
  const kernels::LaunchShape& shape =
      kernels::launch_shape(kernels::ShapedKernel::kChecksum, sums.device());
  const int64_t chunk_bytes = shape.share;
  std::vector<KernelRow> rows;
  int64_t chunks = 0;
  int64_t most_bytes = 0;
  for (const at::Tensor& flat : tensors) {
    const auto bytes = to_int64(flat.nbytes());
    rows.push_back({.data = flat.const_data_ptr(),
                    .bytes = bytes,
                    .first_chunk = chunks,
                    .element_bytes = flat.element_size()});
    chunks += (bytes + chunk_bytes - 1) / chunk_bytes;
    most_bytes = std::max(most_bytes, std::min(bytes, chunk_bytes));
  }

  const size_t row_bytes = rows.size() * sizeof(KernelRow);
  at::Tensor table = at::empty({to_int64(row_bytes)}, at::kByte);
  std::memcpy(table.mutable_data_ptr(), rows.data(), row_bytes);
  table = table.to(sums.device());

  // Where all chunks are small, no thread is idle.
  const int64_t warps = (most_bytes / kThreadBytes + kWarp - 1) / kWarp;
  kernels::launch_kernel(*kernels::device_kernels(sums.device()), sums.device(),
                         {.name = "retort_checksum",
                          .grid_x = chunks,
                          .block = std::clamp(warps * kWarp, kWarp, shape.threads)},
                         kernels::read_address(table), kernels::write_address(sums),
                         static_cast<int32_t>(rows.size()), chunk_bytes);
}

// The sums of tensors of one device, all of which come to the host in one copy.
std::vector<uint64_t> device_sums(const std::vector<at::Tensor>& tensors) {
  const at::Device device = tensors.front().device();
  const auto options = at::TensorOptions(at::kLong).device(device);
  at::Tensor sums = at::zeros({std::ssize(tensors)}, options);
  if (kernels::device_kernels(device) != nullptr)
    add_sums_by_kernel(tensors, sums);
  else
    for (size_t i = 0; i < tensors.size(); ++i)
      sums.select(0, to_int64(i)).copy_(sum_by_operators(tensors[i]));

  const at::Tensor here = sums.cpu();
  const auto* first = reinterpret_cast<const uint64_t*>(here.const_data_ptr<int64_t>());
  return {first, first + here.numel()};
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

uint64_t host_checksum(const WeightPart& part) {
  const at::Tensor flat = part.values.contiguous();
  return with_name(part, checksum64(bytes_of(flat), place_of(part)));
}

// Of parts on devices, the host waits once for all that lie on one device. Parts that came over RPC
// may lie on several.
std::vector<uint64_t> checksums_of(const std::vector<const WeightPart*>& parts) {
  std::vector<uint64_t> checksums(parts.size());
  std::vector<size_t> left;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->values.is_cpu())
      checksums[i] = host_checksum(*parts[i]);
    else
      left.push_back(i);
  }

  while (!left.empty()) {
    const at::Device device = parts[left.front()]->values.device();
    const auto is_there = [&](size_t i) { return parts[i]->values.device() == device; };
    std::vector<size_t> there;
    std::ranges::copy_if(left, std::back_inserter(there), is_there);
    std::erase_if(left, is_there);

    std::vector<at::Tensor> flat;
    for (const size_t i : there)
      flat.push_back(parts[i]->values.contiguous());
    const std::vector<uint64_t> sums = device_sums(flat);
    for (size_t n = 0; n < there.size(); ++n) {
      const WeightPart& part = *parts[there[n]];
      const auto sum = std::as_bytes(std::span(&sums[n], 1));
      checksums[there[n]] = with_name(part, checksum64(sum, place_of(part)));
    }
  }
  return checksums;
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

std::vector<uint64_t> part_checksums(const std::vector<WeightPart>& parts) {
  std::vector<const WeightPart*> all;
  for (const WeightPart& part : parts)
    all.push_back(&part);
  return checksums_of(all);
}

uint64_t combined_checksum(uint64_t running, uint64_t checksum) {
  return checksum64(std::as_bytes(std::span(&checksum, 1)), running);
}

uint64_t seal(WeightBucket& bucket, uint64_t running, bool on_device) {
  for (WeightPart& part : bucket.parts)
    part.values = on_device ? part.values.contiguous() : rpc::host_copy(part.values);

  const std::vector<uint64_t> checksums = part_checksums(bucket.parts);
  for (size_t i = 0; i < checksums.size(); ++i) {
    bucket.parts[i].checksum = checksums[i];
    running = combined_checksum(running, checksums[i]);
  }
  return running;
}

uint64_t seal_copy(WeightBucket& bucket, uint64_t running, bool on_device,
                   const WeightBucket* earlier) {
  std::vector<WeightPart*> copied;  // and not summed yet
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
      copied.push_back(&part);
    }
  }

  const std::vector<uint64_t> checksums = checksums_of({copied.begin(), copied.end()});
  for (size_t i = 0; i < copied.size(); ++i)
    copied[i]->checksum = checksums[i];
  for (const WeightPart& part : bucket.parts)
    running = combined_checksum(running, part.checksum);
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
