// kernels/paged_decode.cuh against its formula in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::paged_decode {
namespace {

struct Case {
  int32_t heads, kv_heads, dim, group;  // the group that the kernel reads together
  int32_t piece, window = 0;
  float softcap = 0;
  int64_t threads = 64;
};

constexpr int32_t kBlockTokens = 16;
const std::vector<int32_t> kLengths{0, 1, 37, 200, 64};
constexpr int64_t kSequences = 5, kMaxBlocks = 13, kPieces = 8;

// A cache [blocks, tokens, kv_heads, dim] and tables that go criss-cross through it.
template <class T>
struct Cache {
  std::vector<T> keys, values, q;
  std::vector<int32_t> tables;
  int64_t token_stride, block_stride;

  explicit Cache(const Case& of)
      : token_stride(int64_t{of.kv_heads} * of.dim), block_stride(kBlockTokens * token_stride) {
    constexpr int64_t kBlocks = kSequences * kMaxBlocks + 1;
    keys = normal<T>(kBlocks * block_stride, 1);
    values = normal<T>(kBlocks * block_stride, 2);
    q = normal<T>(kSequences * of.heads * of.dim, 3, 2);
    for (int64_t i = 0; i < kSequences * kMaxBlocks; ++i)
      tables.push_back(static_cast<int32_t>(i * 7 % (kBlocks - 1)) + 1);
  }
  int64_t place(int64_t sequence, int64_t token, int64_t kv_head, int64_t dim) const {
    const int64_t block = tables[to_size(sequence * kMaxBlocks + token / kBlockTokens)];
    return block * block_stride + token % kBlockTokens * token_stride + kv_head * dim;
  }
};

template <class T>
std::vector<double> expected_of(const Case& of, const Cache<T>& cache, int64_t sequence,
                                int64_t head) {
  const int64_t length = kLengths[to_size(sequence)];
  const int64_t first = of.window > 0 ? std::max<int64_t>(0, length - of.window) : 0;
  const int64_t kv_head = head / (of.heads / of.kv_heads);
  std::vector<float> scores;
  for (int64_t j = first; j < length; ++j) {
    double score = 0;
    for (int64_t i = 0; i < of.dim; ++i)
      score += double{widen(cache.q[to_size((sequence * of.heads + head) * of.dim + i)])} *
               widen(cache.keys[to_size(cache.place(sequence, j, kv_head, of.dim) + i)]);
    score /= std::sqrt(of.dim);
    if (of.softcap > 0) score = of.softcap * std::tanh(score / of.softcap);
    scores.push_back(static_cast<float>(score));
  }
  std::vector<double> y(to_size(of.dim));
  if (scores.empty()) return y;
  const SoftmaxRow softmax(scores.data(), std::ssize(scores));
  for (int64_t j = first; j < length; ++j)
    for (int64_t i = 0; i < of.dim; ++i)
      y[to_size(i)] += softmax.p[to_size(j - first)] *
                       widen(cache.values[to_size(cache.place(sequence, j, kv_head, of.dim) + i)]);
  return y;
}

template <class T>
void check(const Case& of) {
  const Cache<T> cache(of);
  const int64_t tiles = (of.heads / of.kv_heads + of.group - 1) / of.group;
  const int64_t head_rows = kSequences * of.heads;
  const auto [y, max, sum, acc] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& to, auto& piece_max, auto& piece_sum, auto& piece_acc) {
        launch(kernels, kernel_of<T>("paged_decode") + "_g" + std::to_string(of.group),
               {.grid_x = kPieces, .grid_y = kSequences * of.kv_heads * tiles, .block = of.threads},
               cache.q.data(), cache.keys.data(), cache.values.data(), cache.tables.data(),
               kLengths.data(), piece_max.data(), piece_sum.data(), piece_acc.data(), of.heads,
               of.kv_heads, of.dim, static_cast<int32_t>(kMaxBlocks), kBlockTokens,
               cache.block_stride, cache.token_stride, int64_t{of.dim}, of.piece, of.window,
               1 / std::sqrt(static_cast<float>(of.dim)), of.softcap);
        const int64_t wanted = int64_t{of.heads} * of.dim / 8;
        launch(kernels, kernel_of<T>("paged_decode_join"),
               {.grid_x = (wanted + 31) / 32, .grid_y = kSequences, .block = 32}, piece_max.data(),
               piece_sum.data(), piece_acc.data(), kLengths.data(), to.data(), of.heads, of.dim,
               static_cast<int32_t>(kPieces), of.piece, of.window);
      },
      poisoned<T>(head_rows * of.dim), poisoned<float>(head_rows * kPieces),
      poisoned<float>(head_rows * kPieces), poisoned<float>(head_rows * kPieces * of.dim));

  for (int64_t row = 0; row < head_rows; ++row) {
    const std::vector<double> expected = expected_of(of, cache, row / of.heads, row % of.heads);
    for (int64_t i = 0; i < of.dim; ++i)
      ASSERT_TRUE(
          is_close(widen(y[to_size(row * of.dim + i)]), expected[to_size(i)], 1e-5, kRounding<T>))
          << "row " << row << " column " << i << ": " << widen(y[to_size(row * of.dim + i)])
          << ", not " << expected[to_size(i)];
  }
}

TEST(PagedDecodeKernel, GroupsAndHeadSizes) {
  check<Bf16>({2, 2, 64, 2, 64});
  check<Bf16>({4, 2, 128, 2, 32});
  check<Bf16>({8, 2, 256, 4, 100});
  check<Bf16>({7, 1, 64, 8, 64, 0, 0, 128});
  check<float>({4, 1, 64, 4, 33});
  check<float>({2, 1, 256, 4, 64});
}

// More heads than are read together.
TEST(PagedDecodeKernel, GroupsInTiles) {
  check<Bf16>({12, 1, 64, 8, 64});
  check<float>({6, 1, 128, 4, 64});
}

TEST(PagedDecodeKernel, WindowAndSoftcap) {
  check<Bf16>({4, 2, 64, 2, 32, 33});
  check<float>({2, 2, 64, 4, 64, 7, 20});
  check<Bf16>({4, 1, 128, 4, 64, 0, 5});
}

}  // namespace
}  // namespace retort::test::paged_decode
