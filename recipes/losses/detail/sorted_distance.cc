#include "recipes/losses/detail/sorted_distance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

// The bits of a float that is not negative keep its order, and those of one below 2 are 30, which
// three passes sort.
constexpr int kDigitBits = 10;
constexpr int kPasses = 3;
constexpr uint32_t kDigits = 1u << kDigitBits;
constexpr uint32_t kLargestBits = (1u << (kPasses * kDigitBits)) - 1;

// The key ascends as the probability falls. What is none (NaN) gets some place.
uint32_t falling_key(float probability) {
  return kLargestBits - std::min(std::bit_cast<uint32_t>(probability), kLargestBits);
}
float probability_of(uint32_t key) { return std::bit_cast<float>(kLargestBits - key); }

// An item with an id has the key above it.
uint32_t key_of(uint64_t item) { return static_cast<uint32_t>(item >> 32); }
uint32_t key_of(uint32_t item) { return item; }

// Sorts by the keys, equal ones as they came. `spare` is of the same size and is destroyed.
template <class Item>
void sort_by_key(std::vector<Item>& items, std::vector<Item>& spare) {
  std::array<std::array<uint32_t, kDigits>, kPasses> places{};
  const auto digit = [](Item item, int pass) {
    return (key_of(item) >> (pass * kDigitBits)) & (kDigits - 1);
  };
  for (const Item item : items)
    for (int pass = 0; pass < kPasses; ++pass)
      ++places[pass][digit(item, pass)];

  for (int pass = 0; pass < kPasses; ++pass) {
    // A digit's count becomes the place of its first item.
    uint32_t next = 0;
    for (uint32_t& place : places[pass])
      next += std::exchange(place, next);
    for (const Item item : items)
      spare[places[pass][digit(item, pass)]++] = item;
    items.swap(spare);
  }
}

// One row after the other in buffers that stay.
class RowSorter {
 public:
  // x and y have `columns_x` and `columns_y` numbers; `signs` may be null.
  double distance(const float* x, int64_t columns_x, float scale_x, const float* y,
                  int64_t columns_y, float scale_y, float* signs) {
    sort_x(x, columns_x);
    sort_y(y, columns_y);
    double sum = 0;
    for (int64_t k = 0; k < columns_x; ++k) {
      const auto id = static_cast<uint32_t>(x_[k]);
      // The number itself is read, as a NaN of the student must not be hidden by its key.
      const float other = k < columns_y ? scale_y * probability_of(y_[k]) : 0.0f;
      const float off = scale_x * x[id] - other;
      sum += std::abs(off);
      if (signs != nullptr) signs[id] = static_cast<float>((off > 0) - (off < 0));
    }
    for (int64_t k = columns_x; k < columns_y; ++k)
      sum += scale_y * probability_of(y_[k]);
    return sum;
  }

 private:
  void sort_x(const float* x, int64_t columns) {
    x_.resize(columns);
    x_spare_.resize(columns);
    for (int64_t i = 0; i < columns; ++i)
      x_[i] = static_cast<uint64_t>(falling_key(x[i])) << 32 | static_cast<uint32_t>(i);
    sort_by_key(x_, x_spare_);
  }
  void sort_y(const float* y, int64_t columns) {
    y_.resize(columns);
    y_spare_.resize(columns);
    for (int64_t i = 0; i < columns; ++i)
      y_[i] = falling_key(y[i]);
    sort_by_key(y_, y_spare_);
  }

  std::vector<uint64_t> x_, x_spare_;
  std::vector<uint32_t> y_, y_spare_;
};

at::Tensor host_sorted_distance(const ScaledRows& x, const ScaledRows& y, at::Tensor signs) {
  const at::Tensor p = x.probabilities.contiguous(), q = y.probabilities.contiguous();
  const at::Tensor m = x.scale.contiguous(), n = y.scale.contiguous();
  const int64_t columns_x = p.size(1), columns_y = q.size(1);
  const float* px = p.const_data_ptr<float>();
  const float* py = q.const_data_ptr<float>();
  const float* scale_x = m.const_data_ptr<float>();
  const float* scale_y = n.const_data_ptr<float>();
  float* of_signs = signs.defined() ? signs.data_ptr<float>() : nullptr;

  const at::Tensor result = at::empty({p.size(0)}, p.options().dtype(at::kDouble));
  double* distances = result.data_ptr<double>();
  std::vector<RowSorter> sorters(static_cast<size_t>(row_threads()));
  for_rows(p.size(0), [&](int64_t begin, int64_t end, int thread) {
    for (int64_t r = begin; r < end; ++r)
      distances[r] = sorters[thread].distance(
          px + r * columns_x, columns_x, scale_x[r], py + r * columns_y, columns_y, scale_y[r],
          of_signs != nullptr ? of_signs + r * columns_x : nullptr);
  });
  return result;
}

}  // namespace

at::Tensor sorted_distance(const ScaledRows& x, const ScaledRows& y, at::Tensor signs) {
  return x.probabilities.is_cpu() ? host_sorted_distance(x, y, signs)
                                  : aten_sorted_distance(x, y, signs);
}

at::Tensor aten_sorted_distance(const ScaledRows& x, const ScaledRows& y, at::Tensor signs) {
  const auto falling = [](const at::Tensor& p) {
    return at::sort(p, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  };
  at::Tensor other = std::get<0>(falling(y.probabilities));
  other.mul_(y.scale.unsqueeze(1));
  auto [off, ids] = falling(x.probabilities);
  off.mul_(x.scale.unsqueeze(1));

  // Where both sides have a number stands the difference; what the longer one has beyond that is
  // compared with zeros.
  const int64_t common = std::min(off.size(1), other.size(1));
  off.narrow(1, 0, common).sub_(other.narrow(1, 0, common));
  const at::Tensor beyond = other.narrow(1, common, other.size(1) - common).sum(1);
  const at::Tensor distance = off.abs().sum(1).to(at::kDouble) + beyond.to(at::kDouble);
  if (signs.defined()) signs.scatter_(1, ids, off.sign_());
  return distance;
}

}  // namespace retort::losses::detail
