// kernels/table_gradient.cuh against its formula in float64.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/kernels/kernel_check.h"

namespace retort::test::table_gradient {
namespace {

constexpr float kScale = 0.5f;

// Ids of which one is frequent, one outside on either side; `order` is a stable sort of them.
template <class Index>
struct Ids {
  std::vector<Index> ids, sorted, order;

  Ids(int64_t rows, int64_t num_rows) {
    std::mt19937_64 random(3);
    for (int64_t r = 0; r < rows; ++r) {
      const auto drawn = static_cast<int64_t>(random() % to_size(num_rows + 2)) - 1;
      ids.push_back(static_cast<Index>(r % 3 == 0 ? num_rows / 2 : drawn));
    }
    order.resize(ids.size());
    std::iota(order.begin(), order.end(), Index{0});
    std::ranges::stable_sort(order, {}, [&](Index r) { return ids[to_size(r)]; });
    for (const Index r : order)
      sorted.push_back(ids[to_size(r)]);
  }
};

template <class T, class Index>
void check(int64_t rows, int64_t width, int64_t block, int64_t shift = 0) {
  constexpr int64_t kNumRows = 9;
  const Ids<Index> ids(rows, kNumRows);
  const std::vector<T> dh = normal<T>(rows * width + shift, 1);
  const std::vector<float> before = normal(kNumRows * width, 2);
  const int64_t columns = 32 * 16 / to_int64(sizeof(T));
  const std::string name = kernel_of<T>("table_gradient") + (sizeof(Index) == 8 ? "_i64" : "_i32");
  const auto [got] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& main_grad) {
        launch(kernels, name,
               {.grid_x = rows, .grid_y = (width + columns - 1) / columns, .block = block},
               dh.data() + shift, ids.sorted.data(), ids.order.data(), main_grad.data(), rows,
               width, kNumRows, kScale);
      },
      before);

  std::vector<double> expected(before.begin(), before.end());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t id = ids.ids[to_size(r)];
    if (id < 0 || id >= kNumRows) continue;
    for (int64_t i = 0; i < width; ++i)
      expected[to_size(id * width + i)] += kScale * widen(dh[to_size(shift + r * width + i)]);
  }
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 2e-5) << "rows " << rows << " width " << width << " at " << i;
}

TEST(TableGradientKernel, SumsTheRowsOfEachId) {
  check<Bf16, int64_t>(1, 8, 32);
  check<Bf16, int64_t>(150, 264, 128);
  check<Bf16, int32_t>(70, 512, 256);
  check<float, int64_t>(61, 132, 64);
  check<float, int32_t>(150, 128, 32);
}

TEST(TableGradientKernel, WidthsAndAddressesThatPacksDoNotFit) {
  check<Bf16, int64_t>(40, 33, 64);
  check<float, int64_t>(40, 131, 96);
  check<Bf16, int64_t>(30, 64, 64, 1);
}

TEST(TableGradientKernel, NoRows) { check<float, int64_t>(0, 8, 32); }

}  // namespace
}  // namespace retort::test::table_gradient
