#include "engines/probing/differences.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.h"

namespace retort::engines {
namespace {

// No difference counts more than this: of one token an engine may say -inf here and -9999 there.
constexpr double kFarthest = 100;

void add(Difference& sum, float a, float b) {
  const double distance = a == b ? 0 : std::abs(static_cast<double>(a) - static_cast<double>(b));
  const double counted = std::min(distance, kFarthest);
  sum.largest = std::max(sum.largest, counted);
  sum.mean += (counted - sum.mean) / static_cast<double>(++sum.count);
}

}  // namespace

Difference difference(std::span<const float> a, std::span<const float> b) {
  RETORT_CHECK(a.size() == b.size()) << "numbers of different questions";
  Difference sum;
  for (size_t i = 0; i < a.size(); ++i)
    add(sum, a[i], b[i]);
  return sum;
}

Difference difference(const Scored& a, const Scored& b) {
  Difference sum = difference(a.given, b.given);
  if (!a.ids.defined() || !b.ids.defined()) return sum;

  const at::Tensor ids_a = a.ids.contiguous();
  const at::Tensor ids_b = b.ids.contiguous();
  const at::Tensor values_a = a.log_probs.contiguous();
  const at::Tensor values_b = b.log_probs.contiguous();
  for (int64_t r = 0; r < ids_a.size(0); ++r) {
    const int32_t* row = ids_a.const_data_ptr<int32_t>() + r * ids_a.size(1);
    // The two lists may hold other ids, in another order; ids in both are compared.
    std::unordered_map<int32_t, float> known;
    for (int64_t i = 0; i < ids_a.size(1); ++i)
      known[row[i]] = values_a.const_data_ptr<float>()[r * ids_a.size(1) + i];
    for (int64_t i = 0; i < ids_b.size(1); ++i) {
      const auto found = known.find(ids_b.const_data_ptr<int32_t>()[r * ids_b.size(1) + i]);
      if (found != known.end())
        add(sum, found->second, values_b.const_data_ptr<float>()[r * ids_b.size(1) + i]);
    }
  }
  return sum;
}

Difference joined(const Difference& a, const Difference& b) {
  const int64_t count = a.count + b.count;
  if (count == 0) return {};
  const double share = static_cast<double>(b.count) / static_cast<double>(count);
  return {.largest = std::max(a.largest, b.largest),
          .mean = a.mean * (1 - share) + b.mean * share,
          .count = count};
}

}  // namespace retort::engines
