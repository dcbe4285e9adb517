// The emulator itself: what it must find in kernels that are wrong; and kernels/device.cuh.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "tests/kernels/dialect.h"
#include "tests/support/thrown.h"

namespace retort::emulator {
namespace {

// Behind the dialect, whose words it uses.
#include "kernels/device.cuh"

using namespace retort::kernels;
using ::retort::test::expect_error;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One block of that many threads.
void run(uint64_t seed, unsigned threads, const std::function<void()>& kernel) {
  Emulator(seed).run("tried", {}, {.x = threads}, 0, kernel);
}

// Turns the row round in shared memory.
template <bool kHasBarrier>
__global__ void reverse(const float* in, float* out) {
  __shared__ float row[1024];
  begin_shared(row);
  row[threadIdx.x] = in[threadIdx.x];
  if (kHasBarrier) __syncthreads();
  out[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}

TEST(Emulator, BarrierSeparatesWritesFromReads) {
  std::vector<float> in(96), expected(96);
  std::iota(in.begin(), in.end(), 1.0f);
  std::reverse_copy(in.begin(), in.end(), expected.begin());
  for (uint64_t seed = 0; seed < 5; ++seed) {
    std::vector<float> out(96, kNan);
    run(seed, 96, [&] { reverse<true>(in.data(), out.data()); });
    EXPECT_EQ(out, expected) << seed;
  }
}

// Every order leaves other elements unwritten, which are NaN by the poison.
TEST(Emulator, OrderShowsAMissingBarrier) {
  std::vector<float> in(96, 1.0f);
  std::set<std::vector<bool>> seen;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    std::vector<float> out(96, 0.0f);
    run(seed, 96, [&] { reverse<false>(in.data(), out.data()); });
    std::vector<bool> missing;
    for (const float x : out)
      missing.push_back(std::isnan(x));
    EXPECT_GT(std::count(missing.begin(), missing.end(), true), 0) << seed;
    seen.insert(missing);
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST(Emulator, ThreadsAndBlocksHaveTheirPlaces) {
  std::vector<int> seen(4 * 3 * 8 * 4, 0);
  std::vector<unsigned> order;
  Emulator(1).run("places", {.x = 4, .y = 3}, {.x = 8, .y = 4}, 0, [&] {
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    ++seen[block * blockDim.x * blockDim.y + thread];
    if (thread == 0) order.push_back(block);
  });
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  EXPECT_EQ(order.size(), 12u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(Emulator, SharedMemoryIsPoisonedBeforeEachBlock) {
  int blocks = 0;
  Emulator(2).run("poison", {.x = 3}, {.x = 1}, 8, [&] {
    __shared__ float fixed[2];
    begin_shared(fixed);
    auto* dynamic = static_cast<float*>(dynamic_shared());
    for (float* x : {fixed, fixed + 1, dynamic, dynamic + 1}) {
      EXPECT_TRUE(std::isnan(*x));
      *x = 1;
    }
    ++blocks;
  });
  EXPECT_EQ(blocks, 3);
}

TEST(Emulator, ThreadsThatHaveEndedAreNotWaitedFor) {
  int passed = 0;
  run(3, 70, [&] {
    if (threadIdx.x % 3 == 0) return;
    __syncthreads();
    ++passed;
    __syncwarp();
    ++passed;
  });
  EXPECT_EQ(passed, 2 * 46);
}

TEST(Emulator, BarrierInABranchIsNamed) {
  const auto in_branch = [] {
    if (threadIdx.x < 32)
      __syncthreads();
    else
      __shfl_sync(0xffffffffu, 1, 0);
    __syncthreads();
  };
  const int line = __LINE__ - 5;
  expect_error(ErrorCode::kMismatch,
               "threads meet at different places: thread 0 at the barrier "
               "of the block of kernel_emulator_test.cc:" +
                   std::to_string(line),
               [&] { run(4, 64, in_branch); });
  expect_error(ErrorCode::kMismatch, "kernel=tried", [&] { run(4, 64, in_branch); });
}

TEST(Emulator, LanesThatDoNotComeAreNamed) {
  expect_error(ErrorCode::kMismatch,
               "threads wait for others that do not come: thread 0 at the shuffle of", [&] {
                 run(5, 32, [] {
                   if (threadIdx.x < 16) __shfl_xor_sync(0xffffffffu, 1.0f, 1);
                   __syncthreads();
                 });
               });
  expect_error(ErrorCode::kMismatch, "for lanes 0xffff", [&] {
    run(5, 32, [] {
      __syncwarp(threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u);
      __syncthreads();
    });
  });
  expect_error(ErrorCode::kMismatch, "is not one of the lanes 0x1",
               [&] { run(5, 2, [] { __syncwarp(1); }); });
}

TEST(Emulator, RunsAgainAfterAnError) {
  Emulator emulator(6);
  for (int round = 0; round < 3; ++round) {
    expect_error(ErrorCode::kMismatch, "do not come", [&] {
      emulator.run("stuck", {}, {.x = 64}, 0, [] {
        if (threadIdx.x == 40) __syncwarp();
        __syncthreads();
      });
    });
    int threads = 0;
    emulator.run("fine", {}, {.x = 64}, 0, [&] {
      __syncthreads();
      ++threads;
    });
    EXPECT_EQ(threads, 64);
  }
}

TEST(Emulator, PassesOnWhatAThreadThrows) {
  EXPECT_THROW(run(7, 64,
                   [] {
                     __syncthreads();
                     if (threadIdx.x == 33) throw std::runtime_error("33");
                     __syncthreads();
                   }),
               std::runtime_error);
}

TEST(Emulator, RefusesBlocksThatNoDeviceHas) {
  for (const unsigned threads : {0u, 1025u})
    expect_error(ErrorCode::kInvalidArgument, "no device has such a block",
                 [&] { run(8, threads, [] {}); });
}

TEST(Emulator, Shuffles) {
  run(9, 64, [] {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int all = static_cast<int>(threadIdx.x);
    const int warp = all - lane;
    EXPECT_EQ(__shfl_sync(kAllLanes, all, 5), warp + 5);
    EXPECT_EQ(__shfl_sync(kAllLanes, all, 9, 8), warp + lane / 8 * 8 + 1);
    EXPECT_EQ(__shfl_xor_sync(kAllLanes, all, 16), warp + (lane ^ 16));
    EXPECT_EQ(__shfl_xor_sync(kAllLanes, all, 8, 8), lane % 16 < 8 ? all : all - 8);
    EXPECT_EQ(__shfl_up_sync(kAllLanes, all, 3), lane < 3 ? all : all - 3);
    EXPECT_EQ(__shfl_down_sync(kAllLanes, all, 3), lane > 28 ? all : all + 3);
    EXPECT_EQ(__shfl_down_sync(kAllLanes, all, 2, 4), lane % 4 > 1 ? all : all + 2);
    EXPECT_EQ(__shfl_sync(kAllLanes, 1e300 * all, 2), 1e300 * (warp + 2)) << "eight bytes";
    EXPECT_EQ(__ballot_sync(kAllLanes, lane % 4 == 1), 0x22222222u);
    EXPECT_TRUE(__any_sync(kAllLanes, lane == 7));
    EXPECT_FALSE(__all_sync(kAllLanes, lane != 7));
  });
}

TEST(Emulator, HalvesOfAWarpMeetByThemselves) {
  run(10, 32, [] {
    const bool low = threadIdx.x < 16;
    const unsigned lanes = low ? 0xffffu : 0xffff0000u;
    for (int i = 0; i < (low ? 3 : 7); ++i)
      EXPECT_EQ(__shfl_sync(lanes, threadIdx.x, low ? 1 : 17), low ? 1u : 17u);
    EXPECT_EQ(__ballot_sync(lanes, true), lanes);
  });
}

TEST(Emulator, LanesThatHaveEndedHaveNoValue) {
  run(11, 32, [] {
    if (threadIdx.x >= 20) return;
    EXPECT_TRUE(std::isnan(__shfl_sync(kAllLanes, 1.0f, 25)));
    EXPECT_EQ(__ballot_sync(kAllLanes, true), 0xfffffu);
  });
}

TEST(Emulator, CountsBits) {
  EXPECT_EQ(__popc(0xf0u), 4);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(8), 4);
}

TEST(Emulator, AtomicAddCountsAllThreads) {
  std::vector<int> before;
  int count = 0;
  run(12, 100, [&] { before.push_back(atomicAdd(&count, 1)); });
  EXPECT_EQ(count, 100);
  EXPECT_EQ(before.back(), 99);
}

TEST(Device, Bfloat16RoundsToTheNearestEven) {
  const auto rounded = [](float x) { return widen(narrow<Bf16>(x)); };
  const float one_up = 1 + 1.0f / 128;
  EXPECT_EQ(rounded(1 + 1.0f / 256), 1) << "a tie, to the even one";
  EXPECT_EQ(rounded(one_up + 1.0f / 256), 1 + 2.0f / 128) << "a tie, to the even one";
  EXPECT_EQ(rounded(1 + 1.1f / 256), one_up);
  EXPECT_EQ(rounded(-3.0f), -3);
  EXPECT_EQ(rounded(3.4e38f), kInfinity);
  EXPECT_EQ(rounded(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(rounded(kNan)));
  EXPECT_TRUE(std::isnan(rounded(__uint_as_float(0xff800001u)))) << "not an infinity";
  EXPECT_EQ(narrow<float>(1.1f), 1.1f);
}

TEST(Device, PacksAreSixteenBytesThatMustBeAligned) {
  static_assert(sizeof(Pack<Bf16>) == 16 && Pack<Bf16>::kSize == 8 && Pack<float>::kSize == 4);
  alignas(16) float in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  alignas(16) float out[8] = {};
  run(13, 2, [&] { store_pack(out + 4 * threadIdx.x, load_pack(in + 4 * threadIdx.x)); });
  EXPECT_TRUE(std::equal(in, in + 8, out));
  expect_error(ErrorCode::kMismatch, "thread 0 moves 16 bytes at once",
               [&] { run(13, 1, [&] { load_pack(in + 1); }); });
  expect_error(ErrorCode::kMismatch, "kernel=tried",
               [&] { run(13, 1, [&] { store_pack(out + 2, Pack<float>{}); }); });
}

TEST(Device, SumsAndMaximaOfAWarp) {
  run(14, 96, [] {
    const int lane = static_cast<int>(threadIdx.x % 32);
    EXPECT_EQ(warp_sum(static_cast<float>(lane)), 496);
    EXPECT_EQ(warp_max(lane == 3 ? -1.0f : -kInfinity), -1);
    EXPECT_EQ(warp_max(-kInfinity), -kInfinity);
    EXPECT_EQ(warp_max(lane == 9 ? kNan : 1.0f), 1) << "fmaxf leaves NaN out";
  });
}

TEST(Device, SumOfABlockHasTheSameBitsInEveryOrder) {
  for (const unsigned threads : {32u, 128u, 1024u}) {
    std::vector<float> in(threads);
    for (unsigned i = 0; i < threads; ++i)
      in[i] = std::sin(static_cast<float>(i)) * std::exp2(static_cast<float>(i % 23));
    const double exact = std::accumulate(in.begin(), in.end(), 0.0);
    std::set<unsigned> seen;
    for (uint64_t seed = 0; seed < 5; ++seed)
      run(seed, threads, [&] {
        __shared__ float sums[kMaxWarps];
        begin_shared(sums);
        const float sum = block_sum(in[threadIdx.x], sums);
        EXPECT_NEAR(sum, exact, 1e-2 * threads);
        seen.insert(__float_as_uint(sum));
        __syncthreads();
        EXPECT_EQ(block_sum(1.0f, sums), static_cast<float>(threads)) << "memory used again";
      });
    EXPECT_EQ(seen.size(), 1u) << threads;
  }
}

}  // namespace
}  // namespace retort::emulator
