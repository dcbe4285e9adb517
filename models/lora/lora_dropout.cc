#include "models/lora/lora_dropout.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "parallel/staged_copy.h"

namespace retort::models {
namespace {

// Keeps these draws apart from what else follows from the run's seed.
constexpr uint64_t kDropoutNoise = 0x64726f70;
constexpr int64_t kOperatorElements = int64_t{1} << 22;  // of a temporary tensor

// One draw of 64 bits serves two columns, an even one and the next, so a rank whose columns begin
// at an odd one skips the first half.
struct DropoutColumns {
  uint64_t first_pair, pairs;
  int64_t skipped;  // of the first pair

  DropoutColumns(const DropoutPlace& place, int64_t columns)
      : first_pair(static_cast<uint64_t>(place.column) / 2),
        pairs(static_cast<uint64_t>(place.column + columns + 1) / 2 - first_pair),
        skipped(place.column % 2) {}
};

// Returns the limit below which 32 bits drop an element.
uint64_t threshold_of(double p) { return static_cast<uint64_t>(std::llround(p * 0x1.0p32)); }

uint64_t module_seed(const DropoutRows& rows, const DropoutPlace& place) {
  return random_bits(rows.seed, place.module, kDropoutNoise);
}

// Chains the keys of a sequence's tokens on from `key`: a key depends on its token and all before
// it.
void chain_keys(const int64_t* ids, int64_t begin, int64_t end, uint64_t key, int64_t* keys) {
  for (int64_t i = begin; i < end; ++i) {
    key = random_bits(key, static_cast<uint64_t>(ids[i]));
    keys[i] = static_cast<int64_t>(key);
  }
}

// Computes random_mix of int64 elements, whose products wrap and whose shifts must be made to fill
// up with zeros.
at::Tensor mixed_bits(const at::Tensor& bits) {
  const auto shifted = [](const at::Tensor& z, int64_t by) {
    return z.bitwise_right_shift(by).bitwise_and_((int64_t{1} << (64 - by)) - 1);
  };
  at::Tensor z = bits.add(static_cast<int64_t>(0x9e3779b97f4a7c15ULL));
  z.bitwise_xor_(shifted(z, 30)).mul_(static_cast<int64_t>(0xbf58476d1ce4e5b9ULL));
  z.bitwise_xor_(shifted(z, 27)).mul_(static_cast<int64_t>(0x94d049bb133111ebULL));
  return z.bitwise_xor_(shifted(z, 31));
}

}  // namespace

DropoutRows DropoutRows::chosen(const at::Tensor& rows) const {
  if (!active()) return *this;
  return {.p = p, .seed = seed, .keys = keys.index_select(0, rows.to(at::kCPU))};
}

DropoutRows dropout_rows(const PackedTokens& tokens, int64_t rows, double p, uint64_t seed,
                         uint64_t step) {
  if (p <= 0) return {};
  const at::Tensor ids = tokens.input_ids.to(at::kCPU).to(at::kLong).contiguous();
  at::Tensor keys = at::zeros({rows}, at::TensorOptions().dtype(at::kLong));
  const int64_t* id = ids.const_data_ptr<int64_t>();
  auto* key = keys.mutable_data_ptr<int64_t>();

  for (int64_t s = 0; s < tokens.num_sequences(); ++s) {
    const auto at = static_cast<size_t>(s);
    const int64_t begin = tokens.cu_seqlens[at], end = tokens.cu_seqlens[at + 1];
    const Fork fork = tokens.forks.empty() ? Fork{} : tokens.forks[at];
    const int64_t trunk = fork.begins.empty() ? end : begin + fork.begins.front();
    chain_keys(id, begin, trunk, 0, key);

    // A branch continues the keys of the prefix, so that it drops what it would in a sequence of
    // its own.
    const uint64_t from = fork.prefix > 0 ? static_cast<uint64_t>(key[begin + fork.prefix - 1]) : 0;
    for (size_t b = 0; b < fork.begins.size(); ++b) {
      const bool last = b + 1 == fork.begins.size();
      chain_keys(id, begin + fork.begins[b], last ? end : begin + fork.begins[b + 1], from, key);
    }
  }
  return {.p = p, .seed = random_bits(seed, step, kDropoutNoise), .keys = keys};
}

at::Tensor dropout_kept(const DropoutRows& rows, const DropoutPlace& place, int64_t columns,
                        at::Device device) {
  if (!device.is_cpu()) return dropout_kept_by_operators(rows, place, columns, device);
  const int64_t count = rows.keys.numel();
  at::Tensor kept = at::empty({count, columns}, at::TensorOptions().dtype(at::kBool));
  bool* out = kept.mutable_data_ptr<bool>();
  const int64_t* keys = rows.keys.const_data_ptr<int64_t>();
  const uint64_t seed = module_seed(rows, place), threshold = threshold_of(rows.p);

  // The keys of the columns are the same for all rows, so each element takes a single mixing.
  const DropoutColumns pairs(place, columns);
  std::vector<uint64_t> column_keys(pairs.pairs);
  for (uint64_t i = 0; i < pairs.pairs; ++i)
    column_keys[i] = random_bits(seed, pairs.first_pair + i);
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(columns, 1));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t row_key = random_bits(seed, static_cast<uint64_t>(keys[row]), 1);
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t at = c + pairs.skipped;
        const uint64_t bits = random_mix(row_key ^ column_keys[static_cast<size_t>(at / 2)]);
        const uint64_t half = at % 2 == 0 ? bits & 0xffffffffULL : bits >> 32;
        out[row * columns + c] = half >= threshold;
      }
    }
  });
  return kept;
}

at::Tensor dropout_kept_by_operators(const DropoutRows& rows, const DropoutPlace& place,
                                     int64_t columns, at::Device device) {
  const auto host = at::TensorOptions().dtype(at::kLong);
  const uint64_t seed = module_seed(rows, place);
  const auto threshold = static_cast<int64_t>(threshold_of(rows.p));
  const int64_t count = rows.keys.numel();

  // The keys of rows and columns are few, so they are made on the host.
  const DropoutColumns pairs(place, columns);
  at::Tensor column_keys = at::empty({static_cast<int64_t>(pairs.pairs)}, host);
  for (uint64_t i = 0; i < pairs.pairs; ++i)
    column_keys.mutable_data_ptr<int64_t>()[i] =
        static_cast<int64_t>(random_bits(seed, pairs.first_pair + i));
  at::Tensor row_keys = at::empty({count}, host);
  const int64_t* keys = rows.keys.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < count; ++row)
    row_keys.mutable_data_ptr<int64_t>()[row] =
        static_cast<int64_t>(random_bits(seed, static_cast<uint64_t>(keys[row]), 1));
  const std::vector<at::Tensor> there = parallel::staged_to(device, {column_keys, row_keys});
  column_keys = there[0];
  row_keys = there[1];

  // Some rows at a time are mixed, so that temporary tensors stay below kOperatorElements.
  constexpr int64_t kLow = 0xffffffff;
  const int64_t step =
      std::max<int64_t>(1, kOperatorElements / std::max<int64_t>(column_keys.numel(), 1));
  std::vector<at::Tensor> parts{
      at::empty({0, columns}, at::TensorOptions().dtype(at::kBool).device(device))};
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t number = std::min(step, count - begin);
    const at::Tensor some = row_keys.narrow(0, begin, number).unsqueeze(1);
    const at::Tensor bits = mixed_bits(some.bitwise_xor(column_keys.unsqueeze(0)));
    const at::Tensor low = bits.bitwise_and(kLow).ge(threshold);
    const at::Tensor high = bits.bitwise_right_shift(32).bitwise_and_(kLow).ge(threshold);
    parts.push_back(
        at::stack({low, high}, 2).reshape({number, -1}).narrow(1, pairs.skipped, columns));
  }
  return at::cat(parts, 0);
}

at::Tensor dropped(const at::Tensor& x, const DropoutRows& rows, const DropoutPlace& place) {
  if (!rows.active()) return x;
  RETORT_CHECK(x.dim() == 2 && x.size(0) == rows.keys.numel())
      << x.sizes() << " with keys of " << rows.keys.numel() << " rows";
  const at::Tensor kept = dropout_kept(rows, place, x.size(1), x.device());
  return x.mul(kept).mul_(1 / (1 - rows.p));
}

}  // namespace retort::models
