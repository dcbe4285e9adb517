#include "models/generation/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/generation/vector_kernels.h"

namespace retort::models {
namespace {

constexpr int64_t kBins = 1024;

// Scores and weights of one row; a weight of 0 marks a token that is no longer a candidate.
struct Row {
  const float* scores;
  float* weights;
  int64_t size;
  float largest;
  float smallest;

  int64_t bin(int64_t i) const {
    const float width = largest - smallest;
    const float at =
        width > 1e-30f ? (largest - scores[i]) * (static_cast<float>(kBins) / width) : 0.0f;
    return std::min(kBins - 1, static_cast<int64_t>(at));
  }
  bool more_likely(int32_t a, int32_t b) const {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  }
};

// The candidates of one bin, most likely first. Bins hold descending ranges of scores, so a sort of
// one of them is enough to cut the whole order at a place inside it.
void sort_bin(const Row& row, int64_t bin, std::vector<int32_t>& ids) {
  ids.clear();
  for (int64_t i = 0; i < row.size; ++i) {
    if (row.weights[i] > 0 && row.bin(i) == bin) ids.push_back(static_cast<int32_t>(i));
  }
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row.more_likely(a, b); });
}

// Cuts off every token that is less likely than `last`.
void drop_after(const Row& row, int32_t last) {
  const float score = row.scores[last];
  for (int64_t i = 0; i < row.size; ++i) {
    const bool kept = row.scores[i] > score || (row.scores[i] == score && i <= last);
    row.weights[i] = kept ? row.weights[i] : 0.0f;
  }
}

double total_weight(const Row& row) {
  double total = 0;
  for (int64_t begin = 0; begin < row.size; begin += 4096) {
    float sum = 0;
    const int64_t end = std::min(row.size, begin + 4096);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i)
      sum += row.weights[i];
    total += static_cast<double>(sum);
  }
  return total;
}

void keep_most_likely(const Row& row, int64_t count, SamplerScratch& scratch) {
  scratch.counts.assign(kBins, 0);
  for (int64_t i = 0; i < row.size; ++i)
    ++scratch.counts[static_cast<size_t>(row.bin(i))];
  int64_t before = 0;
  int64_t bin = 0;
  while (before + scratch.counts[static_cast<size_t>(bin)] < count) {
    before += scratch.counts[static_cast<size_t>(bin)];
    ++bin;
  }
  sort_bin(row, bin, scratch.ids);
  drop_after(row, scratch.ids[static_cast<size_t>(count - before - 1)]);
}

// Keeps the tokens before which less than `share` of the mass stands.
void keep_mass(const Row& row, double share, SamplerScratch& scratch) {
  scratch.mass.assign(kBins, 0.0);
  double total = 0;
  for (int64_t i = 0; i < row.size; ++i)
    scratch.mass[static_cast<size_t>(row.bin(i))] += static_cast<double>(row.weights[i]);
  for (const double mass : scratch.mass)
    total += mass;
  const double wanted = share * total;
  double before = 0;
  size_t bin = 0;
  while (bin + 1 < scratch.mass.size() && before + scratch.mass[bin] < wanted) {
    before += scratch.mass[bin];
    ++bin;
  }
  sort_bin(row, static_cast<int64_t>(bin), scratch.ids);
  size_t kept = 0;
  while (kept < scratch.ids.size() && (kept == 0 || before < wanted)) {
    before += static_cast<double>(row.weights[scratch.ids[kept]]);
    ++kept;
  }
  drop_after(row, scratch.ids[kept - 1]);
}

const float* penalised(const float* logits, int64_t size, double penalty,
                       std::span<const int32_t> seen, std::vector<float>& scores) {
  scores.assign(logits, logits + size);
  const auto factor = static_cast<float>(penalty);
  for (const int32_t id : seen) {
    float& score = scores[static_cast<size_t>(id)];
    score = score < 0 ? score * factor : score / factor;
  }
  return scores.data();
}

}  // namespace

Choice choose_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    std::span<const int32_t> seen, uint64_t sample, uint64_t position,
                    SamplerScratch& scratch) {
  // The log-probability that is reported: temperature 1, whole vocabulary, no penalty.
  const VectorKernels& kernels = vector_kernels();
  Row row{logits, nullptr, vocab_size, 0, 0};
  kernels.range(logits, vocab_size, &row.largest, &row.smallest);
  const double normaliser =
      row.largest + std::log(kernels.exponentials(logits, nullptr, vocab_size, row.largest, 1.0f));
  if (!std::isfinite(normaliser) || !std::isfinite(row.smallest)) {
    throw Error(ErrorCode::kCorrupt,
                "the model's logits are not finite; check the weights and the dtype")
        .with("sample", sample)
        .with("position", position);
  }
  const auto choice = [&](int64_t token, double sampling_logp) {
    return Choice{static_cast<int32_t>(token),
                  static_cast<float>(static_cast<double>(logits[token]) - normaliser),
                  static_cast<float>(sampling_logp)};
  };

  // The scores that are drawn from.
  if (options.repetition_penalty != 1.0)
    row.scores = penalised(logits, vocab_size, options.repetition_penalty, seen, scratch.scores);
  if (options.num_ids > 0) {
    vocab_size = std::min(vocab_size, options.num_ids);
    row.size = vocab_size;
  }
  kernels.range(row.scores, vocab_size, &row.largest, &row.smallest);
  if (options.temperature == 0) return choice(kernels.find(row.scores, vocab_size, row.largest), 0);

  // Temperature.
  scratch.weights.resize(static_cast<size_t>(vocab_size));
  row.weights = scratch.weights.data();
  double total = kernels.exponentials(row.scores, row.weights, vocab_size, row.largest,
                                      static_cast<float>(1.0 / options.temperature));

  // top_k, top_p, min_p: the weights of what they cut off become 0.
  const bool some = options.top_k > 0 && options.top_k < vocab_size;
  if (some) keep_most_likely(row, options.top_k, scratch);
  if (options.top_p < 1) keep_mass(row, options.top_p, scratch);
  if (options.min_p > 0) {
    const auto least = static_cast<float>(options.min_p);  // the largest weight is 1
    for (int64_t i = 0; i < vocab_size; ++i)
      row.weights[i] = row.weights[i] < least ? 0.0f : row.weights[i];
  }
  if (some || options.top_p < 1 || options.min_p > 0) total = total_weight(row);

  // The Gumbel maximum, found as an exponential race.
  const int64_t token =
      kernels.race(row.weights, vocab_size, noise_key(options.seed, sample, position));
  const double scaled =
      (static_cast<double>(row.scores[token]) - static_cast<double>(row.largest)) /
      options.temperature;
  return choice(token, scaled - std::log(total));
}

}  // namespace retort::models
