#include "roles/payload/draws.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "roles/payload/sharded.h"

namespace retort::roles {
namespace {

// A row's distribution, and where what is drawn from it goes.
struct DrawnRow {
  const float* log_probs;  // [vocab]
  int64_t vocab;
  uint64_t seed, row;  // of the noise
  int32_t* ids;        // [count]
  float* logps;        // [count]
  int64_t count;
};

void draw_with_replacement(const DrawnRow& row) {
  std::vector<double> mass(static_cast<size_t>(row.vocab));  // of the ids up to each
  double total = 0;
  for (size_t id = 0; id < mass.size(); ++id) {
    total += std::exp(static_cast<double>(row.log_probs[id]));
    mass[id] = total;
  }

  for (int64_t i = 0; i < row.count; ++i) {
    const double at = random_uniform(row.seed, row.row, static_cast<uint64_t>(i)) * total;
    auto found = std::upper_bound(mass.begin(), mass.end(), at);
    // Rounding may leave the last sum at the drawn value: then the last id that has any mass.
    if (found == mass.end()) found = std::lower_bound(mass.begin(), mass.end(), total);
    const auto id = found - mass.begin();
    row.ids[i] = static_cast<int32_t>(id);
    row.logps[i] = row.log_probs[id];
  }
}

// Returns kappa.
float draw_without_replacement(const DrawnRow& row) {
  std::vector<std::pair<double, int32_t>> perturbed(static_cast<size_t>(row.vocab));
  for (size_t id = 0; id < perturbed.size(); ++id)
    perturbed[id] = {row.log_probs[id] + random_gumbel(row.seed, row.row, id),
                     static_cast<int32_t>(id)};

  // Of equal sums, which rounding alone may give, the lower id comes first.
  const auto larger = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const int64_t wanted = std::min(row.vocab, row.count + 1);
  std::partial_sort(perturbed.begin(), perturbed.begin() + wanted, perturbed.end(), larger);
  for (int64_t i = 0; i < row.count; ++i) {
    const int32_t id = perturbed[static_cast<size_t>(i)].second;
    row.ids[i] = id;
    row.logps[i] = row.log_probs[id];
  }
  return wanted > row.count ? static_cast<float>(perturbed[static_cast<size_t>(row.count)].first)
                            : kNegInf;
}

}  // namespace

uint64_t draw_seed(uint64_t seed, uint64_t request_id) { return random_bits(seed, request_id); }

void draw_rows(const at::Tensor& log_probs, const PayloadSpec& spec, int64_t first_row,
               Payload& to) {
  RETORT_CHECK(log_probs.is_cpu() && log_probs.is_contiguous()) << "rows on the host";
  const int64_t vocab = log_probs.size(1), count = to.ids.size(1);
  const float* log_prob = log_probs.const_data_ptr<float>();
  auto* ids = to.ids.mutable_data_ptr<int32_t>();
  auto* logps = to.logps.mutable_data_ptr<float>();
  float* kappa = to.kappa.defined() ? to.kappa.mutable_data_ptr<float>() : nullptr;

  at::parallel_for(0, log_probs.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t place = first_row + r;
      const DrawnRow row{.log_probs = log_prob + r * vocab,
                         .vocab = vocab,
                         .seed = spec.seed,
                         .row = static_cast<uint64_t>(place),
                         .ids = ids + place * count,
                         .logps = logps + place * count,
                         .count = count};
      if (spec.replacement)
        draw_with_replacement(row);
      else
        kappa[place] = draw_without_replacement(row);
    }
  });
}

}  // namespace retort::roles
