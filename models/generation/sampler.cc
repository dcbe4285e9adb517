#include "models/generation/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/generation/cpu_kernels/vector_kernels.h"

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

// Sums pieces of 4096 in fp32 and the pieces in fp64, as VectorKernels::exponentials does.
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

// Keeps the `count` most likely tokens. A histogram of the scores finds the bin in which the count
// is reached, so that only this bin is sorted.
void keep_most_likely(const Row& row, int64_t count, SamplerScratch& scratch) {
  scratch.counts.assign(kBins, 0);
  for (int64_t i = 0; i < row.size; ++i)
    if (row.weights[i] > 0) ++scratch.counts[static_cast<size_t>(row.bin(i))];
  int64_t before = 0;
  int64_t bin = 0;
  while (before + scratch.counts[static_cast<size_t>(bin)] < count) {
    before += scratch.counts[static_cast<size_t>(bin)];
    ++bin;
  }
  sort_bin(row, bin, scratch.ids);
  drop_after(row, scratch.ids[static_cast<size_t>(count - before - 1)]);
}

// Keeps the tokens before which less than `share` of the mass stands. As in keep_most_likely, only
// the bin in which the mass is reached is sorted.
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

  // Within that bin tokens are kept until the mass is reached, and at least one is.
  size_t kept = 0;
  while (kept < scratch.ids.size() && (kept == 0 || before < wanted)) {
    before += static_cast<double>(row.weights[scratch.ids[kept]]);
    ++kept;
  }
  drop_after(row, scratch.ids[kept - 1]);
}

// Keeps the tokens whose -log p is nearest to the entropy, until they have `share` of the mass; all
// tokens as near as the last one stay. Source: Meister et al. 2022, "Locally Typical Sampling",
// section 4.2, as transformers' TypicalLogitsWarper computes it.
void keep_typical(const Row& row, double temperature, double share, SamplerScratch& scratch) {
  const double total = total_weight(row);
  const double log_total = std::log(total);
  const auto information = [&](int64_t i) {
    return log_total -
           (static_cast<double>(row.scores[i]) - static_cast<double>(row.largest)) / temperature;
  };
  double entropy = 0;
  for (int64_t i = 0; i < row.size; ++i)
    if (row.weights[i] > 0) entropy += static_cast<double>(row.weights[i]) / total * information(i);

  // Each candidate has a distance from the entropy (-1 marks what is none), and each bin of
  // distances a mass.
  std::vector<double>& distances = scratch.distances;
  distances.assign(static_cast<size_t>(row.size), -1.0);
  double farthest = 0;
  for (int64_t i = 0; i < row.size; ++i) {
    if (!(row.weights[i] > 0)) continue;
    double& distance = distances[static_cast<size_t>(i)];
    distance = std::abs(information(i) - entropy);
    farthest = std::max(farthest, distance);
  }
  const double bins = farthest > 1e-30 ? static_cast<double>(kBins) / farthest : 0.0;
  const auto bin_of = [&](double distance) {
    return std::min(kBins - 1, static_cast<int64_t>(distance * bins));
  };
  scratch.mass.assign(kBins, 0.0);
  for (int64_t i = 0; i < row.size; ++i)
    if (row.weights[i] > 0)
      scratch.mass[static_cast<size_t>(bin_of(distances[static_cast<size_t>(i)]))] +=
          static_cast<double>(row.weights[i]);

  // Only the bin in which the mass is reached is sorted. The last bin is never empty, because the
  // farthest candidate lies in it.
  const double wanted = share * total;
  double before = 0;
  int64_t bin = 0;
  while (bin + 1 < kBins && before + scratch.mass[static_cast<size_t>(bin)] < wanted) {
    before += scratch.mass[static_cast<size_t>(bin)];
    ++bin;
  }
  scratch.ids.clear();
  for (int64_t i = 0; i < row.size; ++i) {
    const double distance = distances[static_cast<size_t>(i)];
    if (distance >= 0 && bin_of(distance) == bin) scratch.ids.push_back(static_cast<int32_t>(i));
  }
  const auto distance_of = [&](int32_t id) { return distances[static_cast<size_t>(id)]; };
  std::sort(scratch.ids.begin(), scratch.ids.end(),
            [&](int32_t a, int32_t b) { return distance_of(a) < distance_of(b); });

  double limit = farthest;
  for (const int32_t id : scratch.ids) {
    before += static_cast<double>(row.weights[id]);
    limit = distance_of(id);
    if (before >= wanted) break;
  }
  for (int64_t i = 0; i < row.size; ++i)
    if (distances[static_cast<size_t>(i)] > limit) row.weights[i] = 0;
}

// Returns a copy of the logits, changed by the penalties for the tokens that the sequence has.
const float* penalised(const float* logits, int64_t size, const SamplingOptions& options,
                       const DrawHistory& history, std::vector<float>& scores) {
  scores.assign(logits, logits + size);
  if (options.repetition_penalty != 1.0) {
    const auto factor = static_cast<float>(options.repetition_penalty);
    for (const int32_t id : history.seen) {
      float& score = scores[static_cast<size_t>(id)];
      score = score < 0 ? score * factor : score / factor;
    }
  }
  for (const TokenCount& had : history.generated)
    scores[static_cast<size_t>(had.id)] -= static_cast<float>(
        options.frequency_penalty * static_cast<double>(had.count) + options.presence_penalty);
  return scores.data();
}

// Gives the barred tokens the least score, so that they move neither the largest score nor the
// bins.
void put_last(std::vector<float>& scores, int64_t size, std::span<const int32_t> barred,
              bool greedy) {
  float largest = 0;
  float least = std::numeric_limits<float>::lowest();
  if (!greedy) vector_kernels().range(scores.data(), size, &largest, &least);
  for (const int32_t id : barred)
    scores[static_cast<size_t>(id)] = least;
}

// Sets the weights of tokens that may not be drawn to 0. True when there may be such tokens: then
// the total has to be formed again.
bool cut(const Row& row, const SamplingOptions& options, std::span<const int32_t> barred,
         SamplerScratch& scratch) {
  for (const int32_t id : barred)
    row.weights[id] = 0;
  const int64_t candidates = row.size - static_cast<int64_t>(barred.size());
  const bool some = options.top_k > 0 && options.top_k < candidates;
  if (some) keep_most_likely(row, options.top_k, scratch);
  if (options.top_p < 1) keep_mass(row, options.top_p, scratch);
  if (options.min_p > 0) {
    const auto least = static_cast<float>(options.min_p);  // the largest weight is 1
    for (int64_t i = 0; i < row.size; ++i)
      row.weights[i] = row.weights[i] < least ? 0.0f : row.weights[i];
  }
  if (options.typical_p < 1) keep_typical(row, options.temperature, options.typical_p, scratch);
  return some || options.top_p < 1 || options.min_p > 0 || options.typical_p < 1 || !barred.empty();
}

}  // namespace

bool needs_row_alone(const SamplingOptions& options) {
  SamplingOptions rest = options;
  rest.min_p = 0;
  return rest.is_whole();
}

RowDraw row_draw(const SamplingOptions& options, uint64_t sample, uint64_t position, int64_t row) {
  const bool greedy = options.temperature == 0;
  return {.key = noise_key(options.seed, sample, position),
          .temperature = options.temperature,
          .inverse_temperature = greedy ? 0.0f : static_cast<float>(1.0 / options.temperature),
          .min_p = static_cast<float>(options.min_p),
          .row = static_cast<int32_t>(row),
          .num_ids = static_cast<int32_t>(options.num_ids)};
}

Error not_finite(uint64_t sample, uint64_t position) {
  return Error(ErrorCode::kCorrupt,
               "the model's logits are not finite; check the weights and the dtype")
      .with("sample", sample)
      .with("position", position);
}

Choice choose_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    const DrawHistory& history, uint64_t sample, uint64_t position,
                    SamplerScratch& scratch) {
  // The reported log-probability is that of temperature 1 over the whole vocabulary, without
  // penalties.
  const VectorKernels& kernels = vector_kernels();
  Row row{logits, nullptr, vocab_size, 0, 0};
  kernels.range(logits, vocab_size, &row.largest, &row.smallest);
  const double normaliser =
      row.largest + std::log(kernels.exponentials(logits, nullptr, vocab_size, row.largest, 1.0f));
  if (!std::isfinite(normaliser) || !std::isfinite(row.smallest))
    throw not_finite(sample, position);
  const auto choice = [&](int64_t token, double sampling_logp) {
    return Choice{static_cast<int32_t>(token),
                  static_cast<float>(static_cast<double>(logits[token]) - normaliser),
                  static_cast<float>(sampling_logp)};
  };

  // Penalties and barred ids change a copy of the scores, because the reported log-probability
  // needs the logits as they are.
  if (options.repetition_penalty != 1.0 || !history.generated.empty() || !history.barred.empty())
    row.scores = penalised(logits, vocab_size, options, history, scratch.scores);
  if (options.num_ids > 0) {
    vocab_size = std::min(vocab_size, options.num_ids);
    row.size = vocab_size;
  }
  if (!history.barred.empty())
    put_last(scratch.scores, vocab_size, history.barred, options.temperature == 0);
  kernels.range(row.scores, vocab_size, &row.largest, &row.smallest);
  if (options.temperature == 0) return choice(kernels.find(row.scores, vocab_size, row.largest), 0);

  // The weights are exponentials relative to the largest score: the largest weight is 1, and none
  // overflows.
  scratch.weights.resize(static_cast<size_t>(vocab_size));
  row.weights = scratch.weights.data();
  double total = kernels.exponentials(row.scores, row.weights, vocab_size, row.largest,
                                      static_cast<float>(1.0 / options.temperature));

  if (cut(row, options, history.barred, scratch)) total = total_weight(row);

  // The token is the Gumbel maximum, found as an exponential race (VectorKernels::race). Its noise
  // depends on seed, sample, position and id alone.
  const int64_t token =
      kernels.race(row.weights, vocab_size, noise_key(options.seed, sample, position));
  const double scaled =
      (static_cast<double>(row.scores[token]) - static_cast<double>(row.largest)) /
      options.temperature;
  return choice(token, scaled - std::log(total));
}

}  // namespace retort::models
