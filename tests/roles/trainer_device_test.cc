// A trainer whose model lies on a device, as far as that can be seen without one: on a stand-in
// whose memory the host cannot read, against the same trainer on the CPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <filesystem>
#include <utility>

#include "models/checkpoint/checkpoint.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "roles/trainer/trainer.h"
#include "tests/losses/stand_in_device.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {
namespace {

namespace fs = std::filesystem;
using test::stand_in_device;

constexpr int kSteps = 3, kVocab = 67;

models::ModelConfig nano(models::Family family, bool tied) {
  models::ModelConfig config = nano_model(family, tied, 3);
  config.sliding_window = {0, 6, 0};
  return config;
}

models::PackedTokens tokens_of(int step, bool forks) {
  std::vector<std::vector<int32_t>> rows(3);
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < 5 + 4 * r; ++i)
      rows[r].push_back(
          static_cast<int32_t>((i * i * 3 + 11 * r + 29 * static_cast<size_t>(step)) % kVocab));
  models::PackedTokens tokens = models::pack_rows(rows);
  if (forks) {  // the last row: two continuations of its first four tokens
    tokens.forks.resize(rows.size());
    const auto length = static_cast<int64_t>(rows.back().size());
    tokens.forks.back() = {.prefix = 4, .begins = {8}};
    tokens.positions.narrow(0, tokens.cu_seqlens[2] + 8, length - 8).sub_(4);
  }
  return tokens;
}

struct Case {
  models::Family family;
  bool tied = false, forks = false;
  int64_t checkpointing_every = 0;
};

struct Training {
  std::vector<double> numbers;  // loss and gradient norm of each step
  at::Tensor parameters;
};

Training train(const Case& c, at::Device device) {
  parallel::World world({.role = "student", .layout = {}});
  models::Decoder decoder =
      models::Decoder::random(nano(c.family, c.tied), 3, at::kFloat, {}, device);
  decoder.set_gradient_checkpointing(c.checkpointing_every > 0,
                                     std::max<int64_t>(1, c.checkpointing_every));
  Trainer trainer(std::move(decoder), world,
                  {.adamw = {.eps = 1e-5, .weight_decay = 0.1},
                   .schedule = {.learning_rate = 3e-3, .max_steps = kSteps}});
  Training run;
  for (int step = 0; step < kSteps; ++step) {
    trainer.begin_step();
    const models::PackedTokens tokens = tokens_of(step, c.forks);
    const at::Tensor hidden = trainer.hidden(tokens);
    EXPECT_EQ(hidden.device(), device);
    const models::Head head = trainer.decoder().head();
    const at::Tensor rows = models::rows_at(hidden, at::arange(1, tokens.num_tokens(), 2));
    const at::Tensor targets = at::arange(rows.size(0));  // on the host, as batches are
    const at::Tensor loss =
        losses::linear_cross_entropy(rows, head.weight, {}, targets, 0, head.vocab).loss_sum;
    run.numbers.push_back(loss.item<double>());
    trainer.backward(loss, true);
    run.numbers.push_back(trainer.finish_step(static_cast<double>(targets.numel())).grad_norm);
  }
  std::vector<at::Tensor> all;
  for (const parallel::NamedParameter& p : trainer.decoder().parameters()) {
    EXPECT_EQ(p.value.device(), device) << p.name;
    all.push_back(p.value.detach().cpu().flatten());
  }
  run.parameters = at::cat(all);
  return run;
}

class Trainers : public testing::TestWithParam<Case> {};

TEST_P(Trainers, StepsOnADeviceAreThoseOfTheCpu) {
  const int64_t before = test::stand_in_operators();
  const Training there = train(GetParam(), stand_in_device());
  EXPECT_GT(test::stand_in_operators() - before, 100);
  const Training here = train(GetParam(), at::kCPU);
  for (size_t i = 0; i < here.numbers.size(); ++i)
    EXPECT_NEAR(there.numbers[i], here.numbers[i], 1e-5 * here.numbers[i]) << i;
  EXPECT_LT((there.parameters - here.parameters).norm().item<double>(),
            1e-5 * here.parameters.norm().item<double>());
}
INSTANTIATE_TEST_SUITE_P(
    All, Trainers,
    testing::Values(Case{.family = models::Family::kQwen3},
                    Case{.family = models::Family::kQwen2, .tied = true},
                    Case{.family = models::Family::kLlama, .forks = true},
                    Case{.family = models::Family::kQwen3, .checkpointing_every = 1},
                    Case{
                        .family = models::Family::kQwen3, .tied = true, .checkpointing_every = 2}));

// The CPU's products want their rows rounded up (parallel::padded_rows). Counted are blocks of
// [rows, intermediate_size] floats, than which a forward pass asks for none larger here.
TEST(DecoderOnADevice, PadsNoRows) {
  models::ModelConfig config = nano_model(models::Family::kQwen3, false, 1);
  config.intermediate_size = 512;
  const models::Decoder there =
      models::Decoder::random(config, 3, at::kFloat, {}, stand_in_device());
  const models::Decoder here = models::Decoder::random(config, 3, at::kFloat);
  const auto bytes_of = [&](int64_t rows) {
    return static_cast<size_t>(rows * config.intermediate_size * 4);
  };
  const at::NoGradGuard no_grad;
  const models::PackedTokens all = tokens_of(0, false);
  const models::PackedTokens some = models::wanting(all, at::arange(0, 22, 2));

  // 27 rows, and 11 of them that are wanted behind the attention of the last layer.
  for (const auto& [tokens, rows] : {std::pair(all, int64_t{27}), {some, int64_t{11}}}) {
    const test::RecordedBlocks blocks;
    const at::Tensor hidden = there.hidden(tokens);
    EXPECT_GT(blocks.of_at_least(bytes_of(rows)), 0);
    EXPECT_EQ(blocks.of_at_least(bytes_of(rows) + 1), 0);
    EXPECT_EQ(hidden.size(0), rows);
    EXPECT_LT((hidden.cpu() - here.hidden(tokens)).abs().max().item<double>(), 1e-4);
  }
  EXPECT_EQ(there.residual_rows(all), 27);
  EXPECT_EQ(here.residual_rows(all), 32);
}

TEST(DecoderOnADevice, IsSavedAndLoaded) {
  const models::ModelConfig config = nano(models::Family::kQwen3, false);
  const models::Decoder there =
      models::Decoder::random(config, 3, at::kFloat, {}, stand_in_device());
  const models::Decoder here = models::Decoder::random(config, 3, at::kFloat);
  const fs::path folder =
      fs::path(testing::TempDir()) / ("retort-device-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  models::save_decoder(there, at::kFloat, folder, folder);
  const models::Decoder again = models::load_decoder(folder, at::kFloat, {}, stand_in_device());
  EXPECT_EQ(again.device(), stand_in_device());
  EXPECT_EQ(models::weights_fingerprint(again), models::weights_fingerprint(here));
  fs::remove_all(folder);
}

TEST(DecoderOnADevice, IsPushedFromHostMemory) {
  const models::ModelConfig config = nano(models::Family::kQwen3, false);
  const models::Decoder there =
      models::Decoder::random(config, 3, at::kFloat, {}, stand_in_device());
  const models::Decoder here = models::Decoder::random(config, 3, at::kFloat);
  uint64_t of_there = 0, of_here = 0;
  for (WeightBucket& bucket : make_weight_buckets(there, weight_slices(here), 1, 4096, 0)) {
    of_there = seal(bucket, of_there);
    for (const WeightPart& part : bucket.parts)
      EXPECT_TRUE(part.values.is_cpu()) << part.name;
  }
  for (WeightBucket& bucket : make_weight_buckets(here, weight_slices(here), 1, 4096, 0))
    of_here = seal(bucket, of_here);
  EXPECT_EQ(of_there, of_here);
}

}  // namespace
}  // namespace retort::roles
