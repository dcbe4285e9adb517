// The engine's device with our own kernels, emulated on the stand-in: which of them a step
// launches, and that they draw the host's tokens from the same logits. The tests of
// device_engine_test.cc run here too.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <memory>
#include <numeric>

#include "models/generation/device_step_model.h"
#include "models/generation/sampler.h"
#include "tests/kernels/named_kernels.h"
#include "tests/losses/stand_in_device.h"
#include "tests/models/engine_support.h"

namespace retort::models {
namespace {

using test::Launches;
using test::named_kernels;
using test::stand_in_device;

ModelConfig decoded_config() {
  ModelConfig config = engine_config();
  config.head_dim = 64;
  return config;
}

// What the device launches in a step in which three sequences draw.
Launches launches_of_a_step(const ModelConfig& config) {
  const Decoder decoder = Decoder::random(config, 7, at::kFloat, {}, stand_in_device());
  Engine engine(decoder, {.num_blocks = 50});
  engine.submit({.prompts = engine_prompts(3), .draw = {.max_new_tokens = 4}});
  engine.step();  // the prompts
  named_kernels().take();
  engine.step();
  return named_kernels().take();
}

// Two layers, so two of each for a layer, and one norm more for the final states.
TEST(EmulatedEngine, LaunchesSixKernelsALayerANormAndADraw) {
  EXPECT_EQ(launches_of_a_step(decoded_config()), (Launches{{"retort_add_rms_norm_f32", 5},
                                                            {"retort_gated_silu_f32", 2},
                                                            {"retort_paged_decode_f32_g4", 2},
                                                            {"retort_paged_decode_join_f32", 2},
                                                            {"retort_qk_norm_rope_f32", 2},
                                                            {"retort_sample_rows_f32", 1}}));
}

// Prompts attend by ATen's operators; a GPU has one of its own for all of them.
TEST(EmulatedEngine, LaunchesNoAttentionForPrompts) {
  const Decoder decoder = Decoder::random(decoded_config(), 7, at::kFloat, {}, stand_in_device());
  Engine engine(decoder, {.num_blocks = 50});
  engine.submit({.prompts = engine_prompts(3), .draw = {.max_new_tokens = 4}});
  named_kernels().take();
  engine.step();
  EXPECT_EQ(named_kernels().take(), (Launches{{"retort_add_rms_norm_f32", 5},
                                              {"retort_gated_silu_f32", 2},
                                              {"retort_qk_norm_rope_f32", 2},
                                              {"retort_sample_rows_f32", 1}}));
}

TEST(EmulatedEngine, GathersHeadsThatHaveNoKernel) {
  const Launches launches = launches_of_a_step(engine_config());
  EXPECT_FALSE(launches.contains("retort_paged_decode_f32_g4"));
  EXPECT_TRUE(launches.contains("retort_sample_rows_f32"));
}

// Every second request draws on the host.
TEST(EmulatedEngine, LaunchesOneDrawForRequestsThatAlternate) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat, {}, stand_in_device());
  Engine engine(decoder, {.num_blocks = 60, .merge_requests = true});
  for (int i = 0; i < 4; ++i) {
    GenerationRequest request{.prompts = engine_prompts(1), .draw = {.max_new_tokens = 4}};
    if (i % 2 == 1) request.draw.sampling.top_p = 0.9;
    engine.submit(request);
  }
  engine.step();  // the prompts
  named_kernels().take();
  engine.step();
  EXPECT_EQ(named_kernels().take()["retort_sample_rows_f32"], 1);
}

SamplingOptions options_of(int64_t draw) {
  SamplingOptions options{.seed = static_cast<uint64_t>(draw)};
  if (draw % 5 == 1) options.temperature = 0;
  if (draw % 5 == 2) options.temperature = 0.7;
  if (draw % 5 == 3) options.min_p = 0.05;
  if (draw % 5 == 4) options.num_ids = 250;
  return options;
}

// 1,000 draws from 40 rows, in chunks of seven rows of logits.
TEST(EmulatedEngine, DrawsTheHostsTokenFromTheSameLogits) {
  const ModelConfig config = engine_config();
  const Decoder decoder = Decoder::random(config, 7, at::kFloat, {}, stand_in_device());
  DeviceStepModel model(decoder, 4, 16, {.logits = 7 * config.vocab_size + 5});
  constexpr int64_t kRows = 40;
  const at::Tensor states = at::randn({kRows, config.hidden_size}).to(stand_in_device());
  std::vector<float> logits(static_cast<size_t>(kRows * config.vocab_size));
  model.logits(states, logits.data());

  constexpr int64_t kDraws = 1000;
  std::vector<RowDraw> draws;
  for (int64_t i = 0; i < kDraws; ++i)
    draws.push_back(row_draw(options_of(i), static_cast<uint64_t>(i) * 3, 9, i * kRows / kDraws));
  std::vector<Choice> drawn(kDraws);
  named_kernels().take();
  model.draw(states, draws, drawn.data());
  EXPECT_EQ(named_kernels().take(), (Launches{{"retort_sample_rows_f32", (kRows + 6) / 7}}));

  SamplerScratch scratch;
  for (int64_t i = 0; i < kDraws; ++i) {
    const auto at = static_cast<size_t>(i);
    const Choice choice =
        choose_token(logits.data() + draws[at].row * config.vocab_size, config.vocab_size,
                     options_of(i), {}, static_cast<uint64_t>(i) * 3, 9, scratch);
    EXPECT_EQ(drawn[at].token, choice.token) << i;
    EXPECT_NEAR(drawn[at].logp, choice.logp, 1e-5) << i;
    EXPECT_NEAR(drawn[at].sampling_logp, choice.sampling_logp, 1e-5) << i;
  }
}

// More sequences than one call of the kernel takes: in parts they have the same bits.
TEST(EmulatedEngine, DecodesInPartsWhatIsTooMuchAtOnce) {
  const Decoder decoder = Decoder::random(decoded_config(), 7, at::kFloat, {}, stand_in_device());
  constexpr int64_t kSequences = 5;
  const std::vector<int32_t> ids = engine_tokens(3 * kSequences, 4);
  std::vector<int32_t> blocks(kSequences);
  std::iota(blocks.begin(), blocks.end(), 0);

  const auto states_with = [&](const DeviceStepModel::Limits& limits) {
    DeviceStepModel model(decoder, kSequences, 16, limits);
    // Each step gives each sequence a token; the last but one is not asked for its state.
    for (int64_t position = 0; position < 3; ++position) {
      std::vector<StepSpan> spans;
      for (int64_t i = 0; i < kSequences; ++i)
        spans.push_back({.first_row = i,
                         .count = 1,
                         .first_position = position,
                         .table = &blocks[static_cast<size_t>(i)],
                         .last = i != kSequences - 2});
      model.forward(
          {ids.begin() + position * kSequences, ids.begin() + (position + 1) * kSequences}, spans);
    }
    return model.final_states().cpu();
  };
  named_kernels().take();
  const at::Tensor whole = states_with({});
  EXPECT_EQ(named_kernels().take()["retort_paged_decode_f32_g4"], 2 * 3);
  const at::Tensor parts = states_with({.decoded = 2});
  EXPECT_EQ(named_kernels().take()["retort_paged_decode_f32_g4"], 2 * 3 * 3);
  EXPECT_EQ(whole.size(0), kSequences - 1);
  EXPECT_TRUE(at::equal(whole, parts));
}

}  // namespace
}  // namespace retort::models

int main(int argc, char** argv) {
  retort::test::stand_in_device();  // before LibTorch counts the devices
  retort::kernels::register_device_kernels(std::make_unique<retort::test::NamedKernels>());
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
