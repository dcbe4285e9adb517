#include "models/decoder/embedding_noise.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace retort::models {
namespace {

// Maps 32 random bits to a number in (-1, 1).
float centred(uint64_t bits) {
  return static_cast<float>((static_cast<double>(bits) + 0.5) * 0x1.0p-31 - 1);
}

// One draw gives the bits of two columns.
void fill_row(uint64_t key, int64_t position, float bound, float* row, int64_t width) {
  for (int64_t column = 0; column < width; column += 2) {
    const uint64_t bits =
        random_bits(key, static_cast<uint64_t>(position), static_cast<uint64_t>(column / 2));
    row[column] = bound * centred(bits >> 32);
    if (column + 1 < width) row[column + 1] = bound * centred(bits & 0xffffffff);
  }
}

}  // namespace

at::Tensor embedding_noise(const PackedTokens& tokens, int64_t first, int64_t rows, int64_t width) {
  const std::vector<int64_t>& cu = tokens.cu_seqlens;
  RETORT_CHECK(static_cast<int64_t>(tokens.noise.keys.size()) == tokens.num_sequences())
      << tokens.noise.keys.size() << " keys of " << tokens.num_sequences() << " sequences";
  at::Tensor noise = at::zeros({rows, width}, at::TensorOptions().dtype(at::kFloat));
  float* values = noise.mutable_data_ptr<float>();

  // Each sequence has the bound of NEFTune, alpha / sqrt(length * width), by its own length; only
  // the rows of [first, first + rows) are filled.
  for (size_t s = 0; s < tokens.noise.keys.size(); ++s) {
    const int64_t begin = std::max(cu[s], first), end = std::min(cu[s + 1], first + rows);
    const double elements = static_cast<double>(cu[s + 1] - cu[s]) * static_cast<double>(width);
    const auto bound = static_cast<float>(tokens.noise.alpha / std::sqrt(elements));
    at::parallel_for(begin, std::max(begin, end), 1, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row)
        fill_row(tokens.noise.keys[s], row - cu[s], bound, values + (row - first) * width, width);
    });
  }
  return noise;
}

}  // namespace retort::models
