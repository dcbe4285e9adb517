#include "models/decoder/embedding_noise.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/random.h"
#include "tests/models/small_model.h"

namespace retort::models {
namespace {

constexpr int64_t kWidth = 128;

// Ids from 0 on, each once: sequences of these lengths.
PackedTokens counted(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> rows;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    std::vector<int32_t>& row = rows.emplace_back(static_cast<size_t>(length));
    std::iota(row.begin(), row.end(), next);
    next += static_cast<int32_t>(length);
  }
  return pack_rows(rows);
}

PackedTokens noisy(PackedTokens tokens, std::vector<uint64_t> keys) {
  tokens.noise = {.alpha = 5, .keys = std::move(keys)};
  return tokens;
}

TEST(EmbeddingNoise, IsUniformWithinABoundByTheLengthOfTheSequence) {
  const PackedTokens tokens = noisy(counted({40, 160}), {7, 8});
  const at::Tensor noise = embedding_noise(tokens, 0, 203, kWidth).to(at::kDouble);
  ASSERT_EQ(noise.sizes(), (at::IntArrayRef{203, kWidth}));
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 40}, {40, 160}}) {
    const at::Tensor rows = noise.narrow(0, begin, length);
    const double bound = 5 / std::sqrt(static_cast<double>(length * kWidth));
    const double count = static_cast<double>(rows.numel());
    EXPECT_LE(rows.abs().max().item<double>(), bound * (1 + 1e-6));
    EXPECT_GT(rows.abs().max().item<double>(), 0.999 * bound);
    // Within four deviations of the mean, and of the mean square of a uniform variable.
    EXPECT_LT(std::abs(rows.mean().item<double>()), 4 * bound / std::sqrt(3 * count));
    EXPECT_NEAR((rows * rows).mean().item<double>() / (bound * bound), 1.0 / 3,
                4 * std::sqrt(4.0 / 45 / count));
  }
  EXPECT_EQ(noise.narrow(0, 200, 3).abs().max().item<double>(), 0) << "padding";
}

// Its formula: two columns a draw, the upper half first.
TEST(EmbeddingNoise, FollowsFromKeyPositionAndColumn) {
  const at::Tensor noise = embedding_noise(noisy(counted({3, 4}), {7, 8}), 0, 7, 6);
  const double bound = 5 / std::sqrt(4.0 * 6);
  const uint64_t bits = random_bits(8, 2, 1);
  const auto centred = [](uint64_t half) {
    return (static_cast<double>(half) + 0.5) / 2147483648.0 - 1;
  };
  EXPECT_NEAR(noise[5][2].item<double>(), bound * centred(bits >> 32), 1e-7);
  EXPECT_NEAR(noise[5][3].item<double>(), bound * centred(bits & 0xffffffff), 1e-7);
}

TEST(EmbeddingNoise, IsTheSameInEveryPackAndSplit) {
  const at::Tensor both = embedding_noise(noisy(counted({3, 5}), {7, 8}), 0, 8, kWidth);
  const at::Tensor other = embedding_noise(noisy(counted({5, 3}), {8, 7}), 0, 8, kWidth);
  EXPECT_TRUE(at::equal(at::cat({other.narrow(0, 5, 3), other.narrow(0, 0, 5)}), both));
  EXPECT_FALSE(at::equal(both.narrow(0, 0, 3), both.narrow(0, 3, 3)));

  const PackedTokens tokens = noisy(counted({3, 5}), {7, 8});
  for (const int64_t first : {0, 2, 4, 6})
    EXPECT_TRUE(at::equal(embedding_noise(tokens, first, 2, kWidth), both.narrow(0, first, 2)));
  EXPECT_EQ(embedding_noise(tokens, 8, 2, kWidth).abs().max().item<double>(), 0);
}

// As if the table had it.
TEST(EmbeddingNoise, IsAddedToTheEmbeddingThatTheFirstLayerReads) {
  const ModelConfig config = small_config();
  Decoder decoder = Decoder::random(config, 5, at::kFloat);
  const PackedTokens plain = counted({20, 30});
  const PackedTokens tokens = noisy(plain, {7, 8});
  auto tensors = tensors_of(Decoder::random(config, 5, at::kFloat));
  ASSERT_EQ(tensors.front().first, "model.embed_tokens.weight");
  tensors.front().second.narrow(0, 0, 50).add_(embedding_noise(tokens, 0, 50, config.hidden_size));
  Decoder changed(config, tensors);

  EXPECT_TRUE(at::equal(decoder.hidden(tokens), changed.hidden(plain)));
  EXPECT_FALSE(at::equal(decoder.hidden(tokens), decoder.hidden(plain)));

  // The gradient passes it by.
  for (Decoder* one : {&decoder, &changed}) {
    one->set_requires_grad(true);
    const at::Tensor hidden = one->hidden(one == &decoder ? tokens : plain);
    (hidden * hidden.detach()).sum().backward();
  }
  for (size_t i = 0; i < decoder.parameters().size(); ++i) {
    const at::Tensor got = decoder.parameters()[i].value.grad();
    const at::Tensor want = changed.parameters()[i].value.grad();
    ASSERT_EQ(got.defined(), want.defined());
    if (!got.defined()) continue;
    EXPECT_TRUE(at::equal(got, want)) << decoder.parameters()[i].name;
  }
}

}  // namespace
}  // namespace retort::models
