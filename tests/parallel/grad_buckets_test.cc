// One process: layout of the buckets, accumulation, tied weights, order errors, norms.
// grad_sync_test.cc has two ranks.
#include "parallel/grad_buckets.h"

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "parallel/detail/gradient_squares.h"
#include "parallel/world.h"
#include "tests/support/thrown.h"

namespace retort::parallel {
namespace {

at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  const int64_t numel = c10::multiply_integers(shape);
  return (at::arange(numel, at::kFloat) / 7 + 0.5).view(shape).to(dtype).requires_grad_(true);
}

class GradBucketsTest : public ::testing::Test {
 protected:
  World world_{World::Options{.role = "student"}};
};

TEST_F(GradBucketsTest, FillsBucketsFromTheLastParameter) {
  const std::vector<NamedParameter> p{
      {"a", leaf({10})}, {"b", leaf({4})}, {"c", leaf({3})}, {"d", leaf({2, 3})}};
  // 40 bytes: {d, c} = 36, {b} (a would make 56), {a} = 40.
  GradBuckets buckets(p, world_.dp(), {.bucket_bytes = 40});
  EXPECT_EQ(buckets.num_buckets(), 3);
  EXPECT_EQ(buckets.size(), 4u);
  const float* start = buckets.main_grad(3).const_data_ptr<float>();
  EXPECT_EQ(buckets.main_grad(2).const_data_ptr<float>(), start + 6);
  EXPECT_EQ(buckets.main_grad(1).const_data_ptr<float>(), start + 9);
  EXPECT_EQ(buckets.main_grad(0).const_data_ptr<float>(), start + 13);
  EXPECT_EQ(buckets.main_grad(3).sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(GradBuckets({{"a", leaf({10})}}, world_.dp(), {.bucket_bytes = 4}).num_buckets(), 1);
  EXPECT_EQ(GradBuckets({}, world_.dp(), {}).num_buckets(), 0);
}

// Partial gradients are of the last buckets, whatever their place in the model; alone in its groups
// no rank has any.
TEST_F(GradBucketsTest, OneRankHasNoLateBuckets) {
  std::vector<NamedParameter> p{{"a", leaf({10})}, {"norm", leaf({4})}, {"c", leaf({3})}};
  p[0].shard.tied_stages = true;
  p[1].shard.partial_gradient = true;
  GradBuckets buckets(p, world_.dp(), {.embedding = &world_.embedding(), .shard = true});
  EXPECT_EQ(buckets.num_buckets(), 1);
  EXPECT_EQ(buckets.num_late_buckets(), 0);
  EXPECT_EQ(buckets.place(1).offset, 3);
  EXPECT_FALSE(buckets.sharded());
  EXPECT_EQ(buckets.part(0).size(), 10);
  EXPECT_TRUE(buckets.main_grad_part(1).is_alias_of(buckets.main_grad(1)));
}

// The sum over dp may round by an element's place: what two ranks hold alike lies alike, whatever
// else they hold.
TEST_F(GradBucketsTest, CopiesLieAlikeOnEveryRank) {
  const auto lay_out = [&](int64_t rows) {
    const std::vector<NamedParameter> p{{"norm1", leaf({4}), {.copies = 2}},
                                        {"head", leaf({rows, 4})},
                                        {"norm2", leaf({4}), {.copies = 2}}};
    const GradBuckets buckets(p, world_.dp(), {.bucket_bytes = 1024});
    return std::tuple(buckets.place(0).offset, buckets.place(2).offset,
                      buckets.bucket_numel(buckets.place(0).bucket));
  };
  EXPECT_EQ(lay_out(7), lay_out(6));
}

TEST_F(GradBucketsTest, NormLeavesOutWhatIsNotCounted) {
  std::vector<NamedParameter> p{{"a", leaf({2})}, {"copy", leaf({2})}};
  p[1].shard.counted = false;
  GradBuckets buckets(p, world_.dp(), {.mp = &world_.mp()});
  buckets.main_grad(0).fill_(3.0);
  buckets.main_grad(1).fill_(100.0);
  EXPECT_DOUBLE_EQ(buckets.norm(), std::sqrt(18.0));
}

TEST_F(GradBucketsTest, AccumulatesMicroBatchesInFp32AndDropsGrad) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor w = leaf({3, 2}, dtype);
    const at::Tensor unused = leaf({4}, dtype);
    GradBuckets buckets({{"w", w}, {"unused", unused}}, world_.dp(), {});
    at::Tensor expected = at::zeros({3, 2});
    for (int step = 0; step < 2; ++step) {
      buckets.main_grad(1).fill_(17.0);  // what a step leaves is not in the next
      buckets.begin_step();
      expected.zero_();
      for (int micro = 0; micro < 3; ++micro) {
        buckets.set_last_micro_batch(micro == 2);
        const at::Tensor x = at::full({3, 2}, 0.1 * (micro + 1 + step)).to(dtype);
        (w * x).sum().backward();
        EXPECT_FALSE(w.grad().defined());
        expected += x.to(at::kFloat);
      }
      buckets.finish();
      EXPECT_TRUE(at::equal(buckets.main_grad(0), expected));
      EXPECT_TRUE(at::equal(buckets.main_grad(1), at::zeros({4})));
    }
    const double norm = buckets.norm();
    buckets.scale(0.5);
    EXPECT_TRUE(at::equal(buckets.main_grad(0), expected));
    EXPECT_EQ(buckets.norm(), 0.5 * norm);
    EXPECT_EQ(buckets.norms({0, 1}, 2), (std::vector<double>{0.5 * norm, 0.0}));
  }
}

TEST_F(GradBucketsTest, ATiedWeightIsReducedOnceWithBothContributions) {
  const at::Tensor tied = leaf({4, 3});
  GradBuckets buckets({{"tied", tied}}, world_.dp(), {});
  buckets.begin_step();
  buckets.set_last_micro_batch(true);
  const at::Tensor hidden = at::embedding(tied, at::tensor({1, 3}, at::kLong));
  at::matmul(hidden, tied.t()).sum().backward();
  buckets.finish();
  // d/dW of sum_{n,v} W[ids_n] . W[v]: row v gets sum_n W[ids_n]; the rows of ids also get sum_v
  // W[v].
  const at::Tensor w = tied.detach();
  at::Tensor expected = (w[1] + w[3]).expand({4, 3}).clone();
  expected[1] += w.sum(0);
  expected[3] += w.sum(0);
  EXPECT_TRUE(at::allclose(buckets.main_grad(0), expected, 1e-6, 1e-6));
}

TEST_F(GradBucketsTest, NormIsOfAllElements) {
  const at::Tensor a = leaf({300, 1000});
  const at::Tensor b = leaf({5});
  GradBuckets buckets({{"a", a}, {"b", b}}, world_.dp(), {});
  buckets.main_grad(0).copy_(a.detach().sin());
  buckets.main_grad(1).copy_(b.detach());
  const double expected =
      std::sqrt(buckets.main_grad(0).to(at::kDouble).square().sum().item<double>() +
                buckets.main_grad(1).to(at::kDouble).square().sum().item<double>());
  EXPECT_NEAR(buckets.norm() / expected, 1.0, 1e-12);
}

// The same bits for every number of threads, also of a tensor that several of them share.
TEST_F(GradBucketsTest, NormDoesNotDependOnThreads) {
  const at::Tensor a = leaf({700, 1000});
  GradBuckets buckets({{"a", a}}, world_.dp(), {});
  buckets.main_grad(0).copy_(at::linspace(-3, 2, 700'000).sin().view({700, 1000}));
  const int before = at::get_num_threads();
  std::vector<double> norms;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    norms.push_back(buckets.norm());
  }
  at::set_num_threads(before);
  EXPECT_EQ(norms, std::vector<double>(3, norms.front()));
}

TEST_F(GradBucketsTest, NamesParametersThatAreNotFinite) {
  GradBuckets buckets({{"a", leaf({2})}, {"b", leaf({20})}, {"c", leaf({2})}}, world_.dp(), {});
  EXPECT_TRUE(buckets.non_finite().empty());
  // A value whose square overflows fp32 is finite all the same.
  buckets.main_grad(0).fill_(std::numeric_limits<float>::max());
  EXPECT_TRUE(buckets.non_finite().empty());
  buckets.main_grad(1)[17] = std::numeric_limits<float>::quiet_NaN();
  buckets.main_grad(2)[0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(buckets.non_finite(), (std::vector<std::string>{"b (norm nan)", "c (norm inf)"}));
}

// The operators that devices run give the same sums on the CPU, with infinities, NaNs and tensors
// without elements in their places.
TEST_F(GradBucketsTest, OperatorsGiveTheSumsOfDevices) {
  const float inf = std::numeric_limits<float>::infinity();
  const float max = std::numeric_limits<float>::max();
  at::manual_seed(3);
  const at::Tensor flat = at::randn({100'003});
  const std::vector<at::Tensor> tensors{
      at::empty({0}),       flat,
      flat.narrow(0, 3, 7), at::tensor({1.0f, -inf}),
      at::empty({0}),       at::tensor({max, max}),
      at::zeros({3}),       at::tensor({std::numeric_limits<float>::quiet_NaN(), inf}),
      at::empty({0})};
  const std::vector<double> host = detail::sums_of_squares(tensors);
  const std::vector<double> got = detail::operator_sums_of_squares(tensors);
  ASSERT_EQ(got.size(), tensors.size());
  for (const size_t i : {1u, 2u, 5u})
    EXPECT_NEAR(got[i] / host[i], 1.0, 1e-12) << i;
  for (const size_t i : {0u, 4u, 6u, 8u})
    EXPECT_EQ(got[i], 0.0) << i;
  EXPECT_EQ(got[3], std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(got[7]));
  EXPECT_TRUE(detail::operator_sums_of_squares({}).empty());
  EXPECT_EQ(detail::operator_sums_of_squares({at::empty({0})}), std::vector<double>{0.0});
}

TEST_F(GradBucketsTest, RefusesParametersThatAreNoLeaves) {
  const at::Tensor w = leaf({2});
  EXPECT_NE(test::message_of([&] {
              GradBuckets({{"x", w * 2}}, world_.dp(), {});
            }).find("'x' is not a leaf"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              GradBuckets({{"y", at::zeros({2})}}, world_.dp(), {});
            }).find("'y' is not a leaf"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              GradBuckets({{"w", w}, {"again", w}}, world_.dp(), {});
            }).find("'again' is listed twice"),
            std::string::npos);

  // Parameters without memory, on two devices, or not there at all.
  const at::Tensor nowhere = at::zeros({2}, at::kMeta).requires_grad_(true);
  EXPECT_NE(test::message_of([&] {
              GradBuckets({{"m", nowhere}}, world_.dp(), {});
            }).find("'m' is on meta, expected a device with memory"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              GradBuckets({{"w", w}, {"m", nowhere}}, world_.dp(), {});
            }).find("'m' is on meta and 'w' on cpu"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              GradBuckets({{"none", {}}}, world_.dp(), {});
            }).find("'none' is not defined"),
            std::string::npos);

  // Groups that the shards need.
  NamedParameter partial{"partial", w, {.copies = 2, .partial_gradient = true}};
  NamedParameter tied{"tied", w, {.tied_stages = true}};
  EXPECT_NE(test::message_of([&] {
              GradBuckets({partial}, world_.dp(), {});
            }).find("expected Options::tp"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              GradBuckets({tied}, world_.dp(), {});
            }).find("expected Options::embedding"),
            std::string::npos);

  // The failed attempts left no hook behind.
  EXPECT_NO_THROW(GradBuckets({{"w", w}}, world_.dp(), {}));
  // Nor do buckets that are gone: backward leaves its gradient in w.grad() again.
  w.sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(GradBucketsTest, RefusesCallsOutOfOrder) {
  const at::Tensor w = leaf({2});
  GradBuckets buckets({{"w", w}}, world_.dp(), {});
  EXPECT_NE(test::message_of([&] { buckets.finish(); }).find("begin_step"), std::string::npos);
  EXPECT_NE(test::message_of([&] { buckets.end_last_backward(); }).find("begin_step"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] { buckets.set_last_micro_batch(true); }).find("begin_step"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] { w.sum().backward(); }).find("'w' outside of a step"),
            std::string::npos);
  w.mutable_grad().reset();
  buckets.begin_step();
  buckets.set_last_micro_batch(true);
  w.sum().backward();
  // The bucket is gone: a second backward in the last micro-batch would be lost.
  EXPECT_NE(test::message_of([&] { w.sum().backward(); }).find("second gradient"),
            std::string::npos);
  w.mutable_grad().reset();
  buckets.end_last_backward();
  buckets.finish();
  EXPECT_TRUE(at::equal(buckets.main_grad(0), at::ones({2})));
}

}  // namespace
}  // namespace retort::parallel
