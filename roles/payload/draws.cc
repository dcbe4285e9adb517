#include "roles/payload/draws.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "roles/payload/sharded.h"

namespace retort::roles {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// A row's distribution as far as this rank has it, with what its random numbers are made from.
struct DrawnRow {
  const float* log_probs;  // [count] of the ids from `begin`
  int64_t begin, count;
  uint64_t seed, row;
};

struct Drawn {
  int32_t id = -1;  // none
  float log_prob = kNegInf;
};

// The place in the payload for a row's draws.
struct Place {
  int32_t* ids;
  float* logps;
  float* kappa;  // null with replacement

  void put(int64_t i, const Drawn& drawn) const {
    ids[i] = drawn.id;
    logps[i] = drawn.log_prob;
  }
};

// The rows of a chunk and their places in the payload.
class DrawnRows {
 public:
  DrawnRows(const at::Tensor& log_probs, const PayloadSpec& spec, int64_t first_row, int64_t begin,
            Payload& to)
      : log_probs_(log_probs), spec_(spec), first_row_(first_row), begin_(begin), to_(to) {}

  int64_t count() const { return log_probs_.size(0); }
  int64_t own() const { return log_probs_.size(1); }
  int64_t draws() const { return to_.ids.size(1); }

  DrawnRow row(int64_t r) const {
    return {.log_probs = log_probs_.const_data_ptr<float>() + r * own(),
            .begin = begin_,
            .count = own(),
            .seed = spec_.seed,
            .row = static_cast<uint64_t>(first_row_ + r)};
  }
  Place place(int64_t r) const {
    const int64_t row = first_row_ + r;
    return {.ids = to_.ids.mutable_data_ptr<int32_t>() + row * draws(),
            .logps = to_.logps.mutable_data_ptr<float>() + row * draws(),
            .kappa = to_.kappa.defined() ? to_.kappa.mutable_data_ptr<float>() + row : nullptr};
  }
  void for_each_row(const std::function<void(int64_t)>& work) const {
    at::parallel_for(0, count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        work(r);
    });
  }

 private:
  const at::Tensor& log_probs_;
  const PayloadSpec& spec_;
  const int64_t first_row_, begin_;
  Payload& to_;
};

// Returns the probability of this rank's ids up to each of them, in their order.
std::vector<double> mass_up_to(const DrawnRow& row) {
  std::vector<double> mass(static_cast<size_t>(row.count));
  double sum = 0;
  for (size_t i = 0; i < mass.size(); ++i) {
    sum += std::exp(static_cast<double>(row.log_probs[i]));
    mass[i] = sum;
  }
  return mass;
}

double whole_mass(const DrawnRow& row) { return row.count == 0 ? 0 : mass_up_to(row).back(); }

// The point at which draw number i falls, in a row whose ids have the mass `total` on all ranks. It
// depends on seed, row and number alone, so every rank finds the same.
double point_of(const DrawnRow& row, int64_t i, double total) {
  return random_uniform(row.seed, row.row, static_cast<uint64_t>(i)) * total;
}

// Returns the id at `point` of this rank's mass, which is not empty.
Drawn drawn_at(const DrawnRow& row, const std::vector<double>& mass, double point) {
  auto found = std::upper_bound(mass.begin(), mass.end(), point);
  // Rounding may leave the point at or beyond the last sum. Then the draw is the last id that has
  // any mass.
  if (found == mass.end()) found = std::lower_bound(mass.begin(), mass.end(), mass.back());
  const auto i = found - mass.begin();
  return {static_cast<int32_t>(row.begin + i), row.log_probs[i]};
}

void draw_with_replacement(const DrawnRows& rows) {
  rows.for_each_row([&](int64_t r) {
    const DrawnRow row = rows.row(r);
    const std::vector<double> mass = mass_up_to(row);
    for (int64_t i = 0; i < rows.draws(); ++i)
      rows.place(r).put(i, drawn_at(row, mass, point_of(row, i, mass.back())));
  });
}

// Each draw is made by the rank among whose ids it falls, which every rank finds by the same sums.
// The masses up to each id are formed twice rather than kept for all rows, which would be two
// chunks of logits.
void draw_with_replacement(const DrawnRows& rows, parallel::Group& ranks) {
  const at::Tensor mine = at::full({rows.count()}, 0, at::kDouble);
  rows.for_each_row(
      [&](int64_t r) { mine.mutable_data_ptr<double>()[r] = whole_mass(rows.row(r)); });
  const at::Tensor all = ranks.all_gather(mine).contiguous();  // [ranks, rows]
  const auto* mass_of = all.const_data_ptr<double>();

  // {id, log-probability} of this rank's draws, and below any elsewhere, so that a maximum over the
  // ranks has them all.
  const at::Tensor drawn = at::full({rows.count(), rows.draws(), 2}, kNone, at::kDouble);
  rows.for_each_row([&](int64_t r) {
    // The mass before this rank's ids, up to their end, and of all, added in the order of the ids.
    // The last rank with any mass also takes a point that rounding left beyond the end.
    double total = 0, before = 0, end = 0;
    int last = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const double mass = mass_of[rank * rows.count() + r];
      if (rank == ranks.rank()) before = total;
      total += mass;
      if (rank == ranks.rank()) end = total;
      if (mass > 0) last = rank;
    }
    if (end == before) return;

    const DrawnRow row = rows.row(r);
    const std::vector<double> mass = mass_up_to(row);
    auto* out = drawn.mutable_data_ptr<double>() + r * rows.draws() * 2;
    for (int64_t i = 0; i < rows.draws(); ++i) {
      const double point = point_of(row, i, total);
      if (point < before || (point >= end && ranks.rank() != last)) continue;
      const Drawn own = drawn_at(row, mass, point - before);
      out[2 * i] = own.id;
      out[2 * i + 1] = own.log_prob;
    }
  });

  // Exactly one rank has each draw, and all ranks put the same ones into the payload.
  const at::Tensor found = at::amax(ranks.all_gather(drawn), 0).contiguous();
  const auto* next = found.const_data_ptr<double>();
  for (int64_t r = 0; r < rows.count(); ++r)
    for (int64_t i = 0; i < rows.draws(); ++i, next += 2)
      rows.place(r).put(i, {static_cast<int32_t>(next[0]), static_cast<float>(next[1])});
}

// An id with its log-probability plus Gumbel noise: the largest of these sums are draws without
// replacement.
struct Perturbed {
  double sum = kNone;
  Drawn drawn;
};

// Keeps the `wanted` largest, largest first. Of equal sums, which rounding alone may give, the
// lower id comes first.
void keep_largest(std::vector<Perturbed>& all, int64_t wanted) {
  const auto larger = [](const Perturbed& a, const Perturbed& b) {
    return a.sum != b.sum ? a.sum > b.sum : a.drawn.id < b.drawn.id;
  };
  const auto kept = std::min<int64_t>(std::ssize(all), wanted);
  std::partial_sort(all.begin(), all.begin() + kept, all.end(), larger);
  all.resize(static_cast<size_t>(kept));
}

std::vector<Perturbed> largest_of(const DrawnRow& row, int64_t wanted) {
  std::vector<Perturbed> all(static_cast<size_t>(row.count));
  for (int64_t i = 0; i < row.count; ++i) {
    const int64_t id = row.begin + i;
    all[static_cast<size_t>(i)] = {
        row.log_probs[i] + random_gumbel(row.seed, row.row, static_cast<uint64_t>(id)),
        {static_cast<int32_t>(id), row.log_probs[i]}};
  }
  keep_largest(all, wanted);
  return all;
}

// `largest` holds the draws, and one more behind them unless all ids are drawn: its sum is kappa,
// from which the reader finds how probable it was that an id is among the draws.
void put(const std::vector<Perturbed>& largest, int64_t draws, const Place& place) {
  for (int64_t i = 0; i < draws; ++i)
    place.put(i, largest[static_cast<size_t>(i)].drawn);
  *place.kappa = std::ssize(largest) > draws
                     ? static_cast<float>(largest[static_cast<size_t>(draws)].sum)
                     : kNegInf;
}

void draw_without_replacement(const DrawnRows& rows) {
  rows.for_each_row([&](int64_t r) {
    put(largest_of(rows.row(r), rows.draws() + 1), rows.draws(), rows.place(r));
  });
}

// The largest of all are among the largest of each rank, so these alone are exchanged.
void draw_without_replacement(const DrawnRows& rows, parallel::Group& ranks) {
  const int64_t wanted = rows.draws() + 1, width = 3 * wanted;
  // {sum, id, log-probability}; -inf where a rank has fewer ids.
  const at::Tensor mine = at::full({rows.count(), width}, kNone, at::kDouble);
  rows.for_each_row([&](int64_t r) {
    auto* out = mine.mutable_data_ptr<double>() + r * width;
    for (const Perturbed& one : largest_of(rows.row(r), wanted)) {
      *out++ = one.sum;
      *out++ = one.drawn.id;
      *out++ = one.drawn.log_prob;
    }
  });

  const at::Tensor all = ranks.all_gather(mine).contiguous();  // [ranks, rows, width]
  rows.for_each_row([&](int64_t r) {
    std::vector<Perturbed> candidates;
    for (int64_t rank = 0; rank < ranks.size(); ++rank) {
      const auto* next = all.const_data_ptr<double>() + (rank * rows.count() + r) * width;
      for (int64_t i = 0; i < wanted && next[1] >= 0; ++i, next += 3)
        candidates.push_back(
            {next[0], {static_cast<int32_t>(next[1]), static_cast<float>(next[2])}});
    }
    keep_largest(candidates, wanted);
    put(candidates, rows.draws(), rows.place(r));
  });
}

}  // namespace

void check_drawable(const at::Tensor& numbers) {
  if (!numbers.isfinite().all().item<bool>())
    throw Error(ErrorCode::kCorrupt,
                "nothing can be drawn: a row of the teacher's logits is not finite (a NaN or an "
                "infinity); check its weights and dtype");
}

uint64_t draw_seed(uint64_t seed, uint64_t request_id) { return random_bits(seed, request_id); }

void draw_rows(const at::Tensor& log_probs, const PayloadSpec& spec, int64_t first_row, Payload& to,
               const parallel::VocabShard& vocab) {
  RETORT_CHECK(log_probs.is_cpu() && log_probs.is_contiguous()) << "rows on the host";
  const DrawnRows rows(log_probs, spec, first_row, vocab.begin, to);
  if (vocab.whole())
    return spec.replacement ? draw_with_replacement(rows) : draw_without_replacement(rows);
  return spec.replacement ? draw_with_replacement(rows, *vocab.group)
                          : draw_without_replacement(rows, *vocab.group);
}

}  // namespace retort::roles
