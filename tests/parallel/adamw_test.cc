// Parity with torch.optim.AdamW (goldens.txt), master weights and the state's round trip.
#include "parallel/adamw.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <map>

#include "parallel/world.h"
#include "tests/parallel/goldens.h"
#include "tests/support/relative_difference.h"
#include "tests/support/thrown.h"

namespace retort::parallel {
namespace {

const std::vector<std::pair<std::string, std::vector<int64_t>>> kShapes{{"embed.weight", {5, 3}},
                                                                        {"layer.q.weight", {4, 3}},
                                                                        {"layer.q.bias", {7}},
                                                                        {"norm.weight", {1}}};
constexpr int kSteps = 10;

double learning_rate(int step) { return 1e-2 * (1.0 + 0.25 * step); }

at::Tensor to_tensor(const std::vector<double>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kDouble).to(at::kFloat).view(shape);
}

class AdamWTest : public ::testing::Test {
 protected:
  std::vector<NamedParameter> make_parameters(at::ScalarType dtype = at::kFloat) {
    std::vector<NamedParameter> parameters;
    for (const auto& [name, shape] : kShapes)
      parameters.push_back(
          {name,
           to_tensor(goldens_.at("adamw/start/" + name), shape).to(dtype).requires_grad_(true)});
    return parameters;
  }
  void set_gradients(GradBuckets& buckets, int step) {
    for (size_t i = 0; i < kShapes.size(); ++i)
      buckets.main_grad(i).copy_(
          to_tensor(goldens_.at("adamw/grad/" + std::to_string(step) + "/" + kShapes[i].first),
                    kShapes[i].second));
  }
  at::Tensor golden(const std::string& what, size_t i) {
    return to_tensor(goldens_.at("adamw/" + what + "/" + kShapes[i].first), kShapes[i].second);
  }

  testing::Goldens goldens_;
  World world_{World::Options{.role = "student"}};
};

struct Variant {
  std::string name;
  AdamW::Options options;
};

TEST_F(AdamWTest, TenStepsEqualTorch) {
  for (const Variant& run :
       {Variant{"plain", {}},
        Variant{"decay", {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}},
        Variant{"groups", {.weight_decay = 0.1, .no_decay_suffixes = {".bias", "norm.weight"}}}}) {
    const std::vector<NamedParameter> parameters = make_parameters();
    GradBuckets buckets(parameters, world_.dp(), {});
    AdamW optimizer(parameters, run.options);

    // The parameters after the first and after the last step.
    for (int step = 0; step < kSteps; ++step) {
      set_gradients(buckets, step);
      optimizer.step(buckets, learning_rate(step));
      if (step != 0 && step != kSteps - 1) continue;
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_LT(test::relative_difference(parameters[i].value,
                                            golden(run.name + "/" + std::to_string(step), i)),
                  1e-6)
            << run.name << " step " << step << " " << parameters[i].name;
    }
    EXPECT_EQ(optimizer.num_steps(), kSteps);

    // Both moments after the last one.
    const std::vector<TensorPiece> state = optimizer.state();
    ASSERT_EQ(state.size(), 2 * parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(state[2 * i].name, parameters[i].name + ".exp_avg");
      EXPECT_EQ(state[2 * i + 1].name, parameters[i].name + ".exp_avg_sq");
      EXPECT_LT(test::relative_difference(state[2 * i].values,
                                          golden(run.name + "/exp_avg", i).flatten()),
                1e-6);
      EXPECT_LT(test::relative_difference(state[2 * i + 1].values,
                                          golden(run.name + "/exp_avg_sq", i).flatten()),
                1e-6);
    }
  }
}

// What the buckets are to be scaled with reaches the update, each parameter's whether it decays or
// not, and the gradients; then nothing is left to be done.
TEST_F(AdamWTest, ScalesTheGradientsItReads) {
  const AdamW::Options options{.weight_decay = 0.1, .no_decay_suffixes = {".bias"}};
  const std::vector<NamedParameter> first = make_parameters();
  const std::vector<NamedParameter> second = make_parameters();
  GradBuckets sums(first, world_.dp(), {});
  GradBuckets means(second, world_.dp(), {});
  AdamW of_sums(first, options);
  AdamW of_means(second, options);

  for (int step = 0; step < kSteps; ++step) {
    set_gradients(sums, step);
    set_gradients(means, step);
    sums.scale(1.0 / 8);
    sums.scale(0.5);
    for (size_t i = 0; i < means.size(); ++i)
      means.main_grad(i).mul_(1.0 / 16);
    of_sums.step(sums, learning_rate(step));
    of_means.step(means, learning_rate(step));
    EXPECT_EQ(sums.pending_scale(), 1);
    EXPECT_EQ(sums.norm(), means.norm());
  }
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(at::equal(first[i].value.detach(), second[i].value.detach())) << first[i].name;
}

// bf16 parameters follow an fp32 master that starts from them: small updates are not lost.
TEST_F(AdamWTest, HalfPrecisionParametersFollowTheirMaster) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const std::vector<NamedParameter> half = make_parameters(dtype);
    std::vector<NamedParameter> full;
    for (const NamedParameter& p : half)
      full.push_back({p.name, p.value.detach().to(at::kFloat).requires_grad_(true)});
    GradBuckets half_buckets(half, world_.dp(), {}), full_buckets(full, world_.dp(), {});
    AdamW half_optimizer(half, {.weight_decay = 0.1}), full_optimizer(full, {.weight_decay = 0.1});
    EXPECT_EQ(full_optimizer.state_bytes(), 8 * (15 + 12 + 7 + 1));
    EXPECT_EQ(half_optimizer.state_bytes(), 12 * (15 + 12 + 7 + 1));
    for (int step = 0; step < kSteps; ++step) {
      set_gradients(half_buckets, step);
      set_gradients(full_buckets, step);
      half_optimizer.step(half_buckets, 1e-5);  // below half an ulp of most bf16 parameters
      full_optimizer.step(full_buckets, 1e-5);
    }
    for (size_t i = 0; i < half.size(); ++i) {
      EXPECT_TRUE(
          at::equal(half_optimizer.state()[3 * i + 2].values, full[i].value.detach().flatten()));
      EXPECT_TRUE(at::equal(half[i].value.detach(), full[i].value.detach().to(dtype)));
    }
  }
}

TEST_F(AdamWTest, StateContinuesWhereItWasSaved) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<NamedParameter> first = make_parameters(dtype);
    const std::vector<NamedParameter> second = make_parameters(dtype);
    GradBuckets first_buckets(first, world_.dp(), {}), second_buckets(second, world_.dp(), {});
    AdamW a(first, {.weight_decay = 0.1});
    for (int step = 0; step < 4; ++step) {
      set_gradients(first_buckets, step);
      a.step(first_buckets, 1e-2);
    }

    std::map<std::string, at::Tensor> saved;
    for (const TensorPiece& piece : a.state())
      saved[piece.name] = piece.values.clone();
    AdamW b(second, {.weight_decay = 0.1});
    for (size_t i = 0; i < second.size(); ++i)
      second[i].value.detach().copy_(first[i].value.detach());
    b.load_state(a.num_steps(),
                 [&](TensorPiece& piece) { piece.values.copy_(saved.at(piece.name)); });
    EXPECT_EQ(b.num_steps(), 4);

    // From here both do the same.
    for (int step = 4; step < kSteps; ++step) {
      set_gradients(first_buckets, step);
      set_gradients(second_buckets, step);
      a.step(first_buckets, 1e-2);
      b.step(second_buckets, 1e-2);
    }
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(at::equal(first[i].value, second[i].value)) << first[i].name;
  }
}

TEST_F(AdamWTest, PiecesSayWhatTheyArePartsOf) {
  std::vector<NamedParameter> parameters = make_parameters();
  parameters[0].shard = {.shape = {11, 3}, .dim = 0, .begin = 5};
  parameters[3].shard.counted = false;
  const AdamW optimizer(parameters, {});
  const std::vector<TensorPiece> all = optimizer.state();
  const std::vector<TensorPiece> counted = optimizer.state(true);
  ASSERT_EQ(all.size(), 8u);
  ASSERT_EQ(counted.size(), 6u);
  EXPECT_EQ(counted[5].name, "layer.q.bias.exp_avg_sq");
  EXPECT_EQ(all[0].shape, (std::vector<int64_t>{11, 3}));
  EXPECT_EQ(all[0].slice_shape, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(all[0].dim, 0);
  EXPECT_EQ(all[0].offset, 5);
  EXPECT_EQ(all[0].begin, 0);
  EXPECT_EQ(all[0].values.sizes(), at::IntArrayRef({15}));
  EXPECT_EQ(all[2].shape, (std::vector<int64_t>{4, 3}));
}

// An error that somebody catches and forgets must not be trained on, nor saved.
TEST_F(AdamWTest, AStateThatWasLoadedInPartIsNobodys) {
  const std::vector<NamedParameter> parameters = make_parameters();
  GradBuckets grads(parameters, world_.dp(), {});
  set_gradients(grads, 0);
  AdamW optimizer(parameters, {});
  const auto read = [](TensorPiece& piece) { piece.values.fill_(3); };
  const auto broken = [&](TensorPiece& piece) {
    if (piece.name == "layer.q.bias.exp_avg") throw Error(ErrorCode::kCorrupt, "a flipped byte");
    read(piece);
  };
  EXPECT_NE(test::message_of([&] { optimizer.load_state(-1, read); }, ErrorCode::kMismatch)
                .find("step is negative"),
            std::string::npos);
  for (const TensorPiece& piece : optimizer.state())
    EXPECT_TRUE(at::equal(piece.values, at::zeros_like(piece.values))) << "nothing was read";

  EXPECT_EQ(test::message_of([&] { optimizer.load_state(1, broken); }, ErrorCode::kCorrupt),
            "a flipped byte");
  EXPECT_EQ(optimizer.num_steps(), 0);
  EXPECT_DEATH(optimizer.step(grads, 1e-2), "was loaded in part");
  EXPECT_DEATH(optimizer.state(), "was loaded in part");

  optimizer.load_state(1, read);
  EXPECT_EQ(optimizer.num_steps(), 1);
  for (const TensorPiece& piece : optimizer.state())
    EXPECT_TRUE(at::equal(piece.values, at::full_like(piece.values, 3))) << piece.name;
  optimizer.step(grads, 1e-2);
}

TEST_F(AdamWTest, RefusesWhatItCannotUpdate) {
  EXPECT_THROW(AdamW({{"w", at::zeros({2}, at::kDouble)}}, {}), Error);
  EXPECT_THROW(AdamW({{"w", at::zeros({2, 3}).t()}}, {}), Error);
  EXPECT_THROW(AdamW({{"w", {}}}, {}), Error);
  EXPECT_THROW(AdamW({{"w", at::zeros({2}, at::kMeta)}}, {}), Error);
  const std::string two_devices = test::message_of([] {
    AdamW({{"here", at::zeros({2})}, {"there", at::zeros({2}, at::kMeta)}}, {});
  });
  EXPECT_NE(two_devices.find("'there' is on meta and 'here' on cpu"), std::string::npos)
      << two_devices;
  EXPECT_THROW(AdamW(make_parameters(), {.beta1 = 1.0}), Error);
  EXPECT_THROW(AdamW(make_parameters(), {.weight_decay = -0.1}), Error);
}

}  // namespace
}  // namespace retort::parallel
