// The inner loops against fp64, in the widths this processor has, and the bookkeeping of blocks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "models/generation/block_pool.h"
#include "models/generation/cpu_kernels/products.h"
#include "tests/models/engine_support.h"
#include "tests/models/vector_widths.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

class Kernels : public testing::TestWithParam<VectorWidth> {
 protected:
  const VectorKernels& kernels = *kernels_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Widths, Kernels, testing::ValuesIn(widths_here()), width_name);

std::vector<float> normal(int64_t count, uint64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(random_gumbel(seed, static_cast<uint64_t>(i)) - 0.6));
  return values;
}

// A sum of products in fp64, and the sum of their sizes, of which a tolerance is a share.
struct Sum {
  double value = 0;
  double size = 1;
};
Sum dot(const float* a, const float* b, int64_t count) {
  Sum sum;
  for (int64_t k = 0; k < count; ++k) {
    const double product = static_cast<double>(a[k]) * b[k];
    sum.value += product;
    sum.size += std::abs(product);
  }
  return sum;
}

TEST_P(Kernels, ProductsOfAnyShape) {
  const int64_t columns = 23;
  const int64_t begin = 3;  // of the columns that are computed
  for (const int64_t inner : {1, 7, 16, 33, 256, 700, 5000}) {
    for (const int64_t rows : {1, 2, 3, 5, 40}) {
      const auto x = normal(rows * (inner + 2), 1);
      const auto w = normal(columns * inner, 2);
      const auto bias = normal(columns, 3);

      // Written once, then added once more: twice the product.
      std::vector<float> y(static_cast<size_t>(rows * columns), 0.5f);
      for (const bool add : {false, true}) {
        kernels.product_float(x.data(), inner + 2, w.data(), inner, bias.data(), y.data(), columns,
                              rows, begin, columns, add);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < begin; ++n)
          ASSERT_EQ(y[static_cast<size_t>(r * columns + n)], 0.5f);
        for (int64_t n = begin; n < columns; ++n) {
          const Sum sum = dot(x.data() + r * (inner + 2), w.data() + n * inner, inner);
          ASSERT_NEAR(y[static_cast<size_t>(r * columns + n)],
                      2 * (bias[static_cast<size_t>(n)] + sum.value), 2e-6 * sum.size)
              << inner << " " << rows;
        }
      }
    }
  }
}

TEST_P(Kernels, ARowDoesNotDependOnTheOthers) {
  const int64_t inner = 300;
  const int64_t columns = 29;
  const int64_t rows = 50;
  const auto x = normal(rows * inner, 1);
  const auto w = normal(columns * inner, 2);
  std::vector<float> all(static_cast<size_t>(rows * columns));
  std::vector<float> one(static_cast<size_t>(columns));
  kernels.product_float(x.data(), inner, w.data(), inner, nullptr, all.data(), columns, rows, 0,
                        columns, false);
  for (int64_t r = 0; r < rows; ++r) {
    kernels.product_float(x.data() + r * inner, inner, w.data(), inner, nullptr, one.data(),
                          columns, 1, 0, 11, false);
    kernels.product_float(x.data() + r * inner, inner, w.data(), inner, nullptr, one.data(),
                          columns, 1, 11, columns, false);
    for (int64_t n = 0; n < columns; ++n)
      ASSERT_EQ(one[static_cast<size_t>(n)], all[static_cast<size_t>(r * columns + n)]);
  }
}

// A sequence's keys and values in blocks out of order; what no token writes is NaN.
struct PagedSequence {
  PagedSequence(const std::vector<float>& k, const std::vector<float>& v, int64_t dim,
                int64_t block_tokens)
      : padded((dim + 15) / 16 * 16), block_stride(padded * block_tokens) {
    const int64_t length = static_cast<int64_t>(k.size()) / dim;
    const int64_t num_blocks = (length + block_tokens - 1) / block_tokens;
    for (int64_t b = 0; b < num_blocks; ++b)
      table.push_back(static_cast<int32_t>((b * 2 + 1) % num_blocks));
    if (num_blocks % 2 == 0) std::iota(table.begin(), table.end(), 0);

    // Keys lie by dimension, values by token.
    keys.assign(static_cast<size_t>(num_blocks * block_stride), NAN);
    values = keys;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t at = table[static_cast<size_t>(t / block_tokens)] * block_stride;
      const int64_t offset = t % block_tokens;
      for (int64_t d = 0; d < dim; ++d) {
        const auto from = static_cast<size_t>(t * dim + d);
        keys[static_cast<size_t>(at + d * block_tokens + offset)] = k[from];
        values[static_cast<size_t>(at + offset * padded + d)] = v[from];
      }
    }
  }

  int64_t padded;
  int64_t block_stride;
  std::vector<int32_t> table;
  std::vector<float> keys;
  std::vector<float> values;
};

// softmax(scale * q k^T) v over tokens [low, high), in fp64.
std::vector<double> reference_attention(const float* q, const std::vector<float>& k,
                                        const std::vector<float>& v, int64_t dim, int64_t low,
                                        int64_t high, double scale) {
  std::vector<double> mixed(static_cast<size_t>(dim), 0.0);
  double total = 0;
  for (int64_t t = low; t < high; ++t) {
    const double weight = std::exp(scale * dot(q, k.data() + t * dim, dim).value);
    total += weight;
    for (int64_t d = 0; d < dim; ++d)
      mixed[static_cast<size_t>(d)] += weight * v[static_cast<size_t>(t * dim + d)];
  }
  for (double& value : mixed)
    value /= total;
  return mixed;
}

// Queries at positions [first, length) of one sequence, three heads that share a kv head.
void check_attention(const VectorKernels& kernels, int64_t dim, int64_t window, int64_t bt) {
  const int64_t length = 75;
  const int64_t first = 58;
  const int64_t count = length - first;
  const int64_t group = 3;
  const auto q = normal(count * group * dim, 4);
  const auto k = normal(length * dim, 5);
  const auto v = normal(length * dim, 6);

  // The kernel, over blocks.
  const PagedSequence cache(k, v, dim, bt);
  std::vector<float> out(q.size());
  std::vector<float> scratch(static_cast<size_t>(attend_scratch(length, cache.padded)));
  kernels.attend({.q = q.data(),
                  .out = out.data(),
                  .keys = cache.keys.data(),
                  .values = cache.values.data(),
                  .table = cache.table.data(),
                  .scratch = scratch.data(),
                  .q_stride = group * dim,
                  .block_stride = cache.block_stride,
                  .first_position = first,
                  .num_queries = count,
                  .group = group,
                  .head_dim = dim,
                  .padded_dim = cache.padded,
                  .block_tokens = bt,
                  .window = window,
                  .scale = 0.3f});

  // Each row against the reference.
  for (int64_t r = 0; r < count * group; ++r) {
    const int64_t position = first + r / group;
    const int64_t low = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    const auto expected =
        reference_attention(q.data() + r * dim, k, v, dim, low, position + 1, 0.3);
    for (int64_t d = 0; d < dim; ++d)
      ASSERT_NEAR(out[static_cast<size_t>(r * dim + d)], expected[static_cast<size_t>(d)], 2e-5)
          << dim << " " << window << " " << bt;
  }
}

TEST_P(Kernels, AttentionOverBlocks) {
  for (const int64_t dim : {8, 16, 24, 64, 80}) {
    for (const int64_t window : {0, 9, 40}) {
      for (const int64_t block_tokens : {16, 32})
        check_attention(kernels, dim, window, block_tokens);
    }
  }
}

TEST_P(Kernels, RaceIsTheGumbelMaximum) {
  for (const int64_t size : {1, 15, 512, 1500}) {
    for (uint64_t position = 0; position < 30; ++position) {
      std::vector<float> weights;
      for (const float x : normal(size, 7))
        weights.push_back(std::exp(x));
      weights[0] = 0;
      weights.back() = 1;
      double best = -INFINITY;
      int64_t winner = 0;
      for (int64_t i = 0; i < size; ++i) {
        const double score = std::log(static_cast<double>(weights[static_cast<size_t>(i)])) +
                             random_gumbel(5, 6, position, static_cast<uint64_t>(i));
        if (score > best) {
          best = score;
          winner = i;
        }
      }
      EXPECT_EQ(kernels.race(weights.data(), size, noise_key(5, 6, position)), winner);
    }
  }
}

// c tanh(s x / c), the same numbers wherever a row is cut.
TEST_P(Kernels, SoftcapOverTheWholeRange) {
  std::vector<float> x;
  for (int i = -3000; i <= 3000; ++i)
    x.push_back(static_cast<float>(i) * 0.05f);
  std::vector<float> whole = x, parts = x;
  const auto size = static_cast<int64_t>(x.size());
  kernels.softcap(whole.data(), size, 0.7f, 30.0f);
  for (int64_t at = 0; at < size; at += 7)
    kernels.softcap(parts.data() + at, std::min<int64_t>(7, size - at), 0.7f, 30.0f);
  EXPECT_EQ(whole, parts);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(whole[i], 30.0 * std::tanh(0.7 * static_cast<double>(x[i]) / 30.0), 1e-5) << x[i];
}

TEST(Matrices, ThreadsAndCompanyDoNotShow) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({33, 200});
  const at::Tensor a = at::randn({130, 200});
  const at::Tensor b = at::randn({7, 200});
  const at::Tensor bias = at::randn({130});
  WorkerPool pool(4);
  const Matrix first(a, bias), second(b, {});
  at::Tensor y = at::zeros({33, 130});
  at::Tensor z = at::zeros({33, 7});
  multiply(pool, x.const_data_ptr<float>(), 200, 33,
           {{&first, y.mutable_data_ptr<float>(), 130}, {&second, z.mutable_data_ptr<float>(), 7}});
  EXPECT_LT((y - at::linear(x, a, bias)).abs().max().item<double>(), 1e-4);
  EXPECT_LT((z - at::linear(x, b)).abs().max().item<double>(), 1e-4);
  at::Tensor gate = at::zeros({33, 130});
  at::Tensor scratch = at::zeros({33, 130});
  const at::Tensor g = at::linear(x, a, bias);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    multiply_gated(pool, x.const_data_ptr<float>(), 200, 33, first, Matrix(-a, {}), activation,
                   gate.mutable_data_ptr<float>(), scratch.mutable_data_ptr<float>(), 130);
    const at::Tensor gates = activation == Activation::kSilu ? at::silu(g) : at::gelu(g, "tanh");
    const at::Tensor wanted = gates * at::linear(x, -a);
    EXPECT_LT((gate - wanted).abs().max().item<double>(), 1e-5 * wanted.abs().max().item<double>());
  }
}

TEST(Workers, DoEveryPieceOnceAndPassErrorsOn) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 7, 100, 1000}) {
      for (int repeat = 0; repeat < 200; ++repeat) {
        std::vector<int> seen(static_cast<size_t>(count), 0);
        pool.run(count, 3, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_LT(thread, threads);
          for (int64_t i = begin; i < end; ++i)
            ++seen[static_cast<size_t>(i)];
        });
        ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), count);
      }
    }
    test::message_of([&] {
      pool.run(100, 1, [](int64_t begin, int64_t, int) {
        if (begin == 0) throw Error(ErrorCode::kInvalidArgument, "first piece");
      });
    });
    pool.run(100, 1, [](int64_t, int64_t, int) {});
  }
}

TEST(Blocks, CountsSharesAndForgets) {
  BlockPool pool(6, 16, true);
  const std::vector<int32_t> ids = engine_tokens(60, 1);
  CachedTokens first;
  ASSERT_TRUE(pool.extend(first, 60));
  EXPECT_FALSE(pool.extend(first, 97));
  EXPECT_EQ(pool.used(), 4);
  first.computed = 60;
  pool.publish(first, ids);

  // The full blocks of a published sequence have a second owner, and outlive both.
  CachedTokens second = pool.share(first);
  EXPECT_EQ(second.computed, 48);
  EXPECT_EQ(pool.used(), 4);
  pool.release(second);
  pool.release(first);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.cached(), 3);

  // Sequences with the same beginning take them over, up to where the tokens differ.
  CachedTokens third;
  pool.match(third, {ids.begin(), ids.begin() + 48});  // the last token is to be computed
  EXPECT_EQ(third.computed, 32);
  std::vector<int32_t> other = ids;
  other[20] ^= 1;
  CachedTokens fourth;
  pool.match(fourth, other);
  EXPECT_EQ(fourth.computed, 16);
  EXPECT_EQ(fourth.table[0], third.table[0]);
  pool.release(third);

  // Cached contents go when their place is needed, and when they are forgotten.
  ASSERT_TRUE(pool.extend(fourth, 96));  // drives the cached contents out
  EXPECT_EQ(pool.available(), 0);
  pool.match(third, ids);
  EXPECT_EQ(third.computed, 16);
  pool.release(third);
  pool.release(fourth);
  pool.forget();
  EXPECT_EQ(pool.cached(), 0);
  pool.match(third, ids);
  EXPECT_EQ(third.computed, 0);
}

}  // namespace
}  // namespace retort::models
