// kernels/checksum.cuh against the sum that it documents.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::checksum {
namespace {

// As ChecksumTensor.
struct ChecksumTensor {
  const void* data;
  int64_t bytes, first_chunk, element_bytes;
};

template <class Signed>
uint64_t sum_of(const void* data, int64_t bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < to_size(bytes) / sizeof(Signed); ++i) {
    Signed bits;
    std::memcpy(&bits, static_cast<const char*>(data) + i * sizeof(Signed), sizeof(Signed));
    sum += static_cast<uint64_t>(int64_t{bits}) * (((i + 1) * kOdd) | 1);
  }
  return sum;
}

uint64_t sum_of(const ChecksumTensor& tensor) {
  switch (tensor.element_bytes) {
    case 1: return sum_of<int8_t>(tensor.data, tensor.bytes);
    case 2: return sum_of<int16_t>(tensor.data, tensor.bytes);
    case 4: return sum_of<int32_t>(tensor.data, tensor.bytes);
    default: return sum_of<int64_t>(tensor.data, tensor.bytes);
  }
}

TEST(ChecksumKernel, TensorsOfAllSizes) {
  constexpr int64_t kChunkBytes = 1024;
  std::mt19937_64 random(1);
  std::vector<uint64_t> memory(6000);
  for (uint64_t& bits : memory)
    bits = random();
  const char* place = reinterpret_cast<const char*>(memory.data());

  std::vector<ChecksumTensor> table;
  int64_t chunks = 0;
  const int64_t sizes[] = {8, 0, 24, 1016, 1024, 1040, 5000, 8192};
  for (const int64_t element : {1, 2, 4, 8})
    for (const int64_t bytes : sizes) {
      // Some are not aligned.
      const char* data = place + (bytes == 5000 ? 8 : 0);
      table.push_back({data, bytes, chunks, element});
      chunks += (bytes + kChunkBytes - 1) / kChunkBytes;
    }
  const auto num_tensors = static_cast<int32_t>(table.size());
  const auto [sums] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to) {
        launch(kernels, "retort_checksum", {.grid_x = chunks, .block = 64}, table.data(), to.data(),
               num_tensors, kChunkBytes);
      },
      std::vector<uint64_t>(table.size()));
  for (size_t t = 0; t < table.size(); ++t)
    EXPECT_EQ(sums[t], sum_of(table[t])) << t;
}

}  // namespace
}  // namespace retort::test::checksum
