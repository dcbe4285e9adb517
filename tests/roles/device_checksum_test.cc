// Checksums of weights on a device: by LibTorch's operators, and by our kernel, emulated on the
// stand-in device, against the sum that both form; and how often the host waits for them.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/sizes.h"
#include "roles/generator/weight_checksum.h"
#include "tests/kernels/emulated_kernels.h"
#include "tests/losses/stand_in_device.h"

namespace retort::roles {
namespace {

using emulator::EmulatedKernels;
using test::stand_in_device;
using Reads = std::vector<std::string>;

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

template <class Signed>
uint64_t sum_of(const at::Tensor& here) {
  const auto* bytes = static_cast<const char*>(here.const_data_ptr());
  uint64_t sum = 0;
  for (uint64_t i = 0; i < here.nbytes() / sizeof(Signed); ++i) {
    Signed bits;
    std::memcpy(&bits, bytes + i * sizeof(Signed), sizeof(Signed));
    sum += static_cast<uint64_t>(int64_t{bits}) * (((i + 1) * kOdd) | 1);
  }
  return sum;
}

uint64_t expected_checksum(const WeightPart& part) {
  const at::Tensor here = part.values.cpu().contiguous();
  uint64_t sum = 0;
  switch (here.element_size()) {
    case 1: sum = sum_of<int8_t>(here); break;
    case 2: sum = sum_of<int16_t>(here); break;
    case 4: sum = sum_of<int32_t>(here); break;
    default: sum = sum_of<int64_t>(here); break;
  }
  uint64_t place = 0;
  for (const int64_t begin : part.begin)
    place = place * kOdd + static_cast<uint64_t>(begin);
  return checksum64(std::as_bytes(std::span(part.name)),
                    checksum64(std::as_bytes(std::span(&sum, 1)), place));
}

at::Tensor drawn(int64_t numel, at::ScalarType dtype) {
  const at::Tensor values = (at::arange(numel, at::kDouble) * 0.7 + static_cast<double>(numel));
  return values.sin().mul(100).to(dtype).to(stand_in_device());
}

// Every size of element; one that several blocks sum, one without elements, one that begins at an
// address which no wide load takes, and the columns of a matrix.
WeightBucket bucket_there() {
  WeightBucket bucket;
  const auto add = [&](const char* name, at::Tensor values) {
    const int64_t place = 7 * std::ssize(bucket.parts);
    std::vector<int64_t> begin(to_size(values.dim()), place);
    bucket.parts.push_back({.name = name, .begin = std::move(begin), .values = std::move(values)});
  };
  add("wide", drawn(300'001, at::kBFloat16));
  add("empty", drawn(0, at::kFloat));
  add("odd", drawn(1'001, at::kFloat).narrow(0, 1, 997));
  add("columns", drawn(35 * 12, at::kBFloat16).view({35, 12}).narrow(1, 5, 6));
  add("bytes", drawn(77, at::kChar));
  add("doubles", drawn(1, at::kDouble));
  return bucket;
}

void expect_sealed(const WeightBucket& bucket, uint64_t got) {
  uint64_t running = 3;
  for (const WeightPart& part : bucket.parts) {
    EXPECT_EQ(part.values.device(), stand_in_device());
    EXPECT_EQ(part.checksum, expected_checksum(part)) << part.name;
    running = combined_checksum(running, part.checksum);
  }
  EXPECT_EQ(got, running);
}

// The copy that is read on each end: one number a part.
const Reads kOneRead{"copy Long[6]"};

// With the kernels a bucket takes `launches` on each end.
void expect_one_read(int64_t launches, const EmulatedKernels* kernels) {
  const auto launched = [&] { return kernels == nullptr ? 0 : kernels->num_launches(); };
  test::RecordedReads reads;
  WeightBucket bucket = bucket_there();
  const int64_t before = launched();
  const uint64_t checksum = seal(bucket, 3, /*on_device=*/true);
  EXPECT_EQ(reads.take(), kOneRead);
  EXPECT_EQ(launched() - before, launches);
  expect_sealed(bucket, checksum);

  // The copy that a sender keeps, in new memory and in that of an earlier one.
  WeightBucket copy = bucket_there();
  WeightBucket again = bucket_there();
  reads.take();
  EXPECT_EQ(seal_copy(copy, 3, /*on_device=*/true, nullptr), checksum);
  EXPECT_EQ(seal_copy(again, 3, /*on_device=*/true, &copy), checksum);
  EXPECT_EQ(reads.take(), (Reads{kOneRead[0], kOneRead[0]}));
  expect_sealed(again, checksum);

  // On the receiving end, where one element of the last block is another.
  std::vector<uint64_t> sealed;
  for (const WeightPart& part : bucket.parts)
    sealed.push_back(part.checksum);
  reads.take();
  EXPECT_EQ(part_checksums(bucket.parts), sealed);
  EXPECT_EQ(reads.take(), kOneRead);
  bucket.parts[0].values.narrow(0, 299'990, 1).add_(8);
  const std::vector<uint64_t> damaged = part_checksums(bucket.parts);
  EXPECT_NE(damaged[0], sealed[0]);
  EXPECT_TRUE(std::equal(damaged.begin() + 1, damaged.end(), sealed.begin() + 1));
}

// In this order, because kernels that were brought stay for the rest of the process.
TEST(DeviceChecksums, OfOperatorsAndOfTheKernelAreOneAndReadOnce) {
  expect_one_read(0, nullptr);
  auto owned = std::make_unique<EmulatedKernels>(1, at::DeviceType::PrivateUse1,
                                                 test::with_open_stand_in);
  const EmulatedKernels& kernels = *owned;
  kernels::register_device_kernels(std::move(owned));
  expect_one_read(1, &kernels);
}

}  // namespace
}  // namespace retort::roles
