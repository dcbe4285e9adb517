// generate(): a list of prompts in one call.
#include "models/generation/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <cmath>

#include "tests/models/small_model.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::code_of;

TEST(Generate, EveryPromptAsIfAlone) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 11; ++i)
    prompts.push_back(some_tokens(1 + 7 * i, i));
  GenerateOptions options;
  options.draw.max_new_tokens = 12;
  options.max_batch = 4;
  for (const double temperature : {0.0, 0.8}) {
    options.draw.sampling.temperature = temperature;
    options.draw.sampling.seed = 3;
    const std::vector<Completion> together = generate(decoder, prompts, options);
    GenerateOptions alone = options;
    alone.max_batch = 1;
    const std::vector<Completion> one_by_one = generate(decoder, prompts, alone);
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(together[i].token_ids, one_by_one[i].token_ids) << i;
  }
}

TEST(Generate, StopsAtAnEndToken) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  GenerateOptions options{.draw = {.sampling = {.temperature = 0}, .max_new_tokens = 10}};
  const std::vector<std::vector<int32_t>> prompts{some_tokens(5, 1), some_tokens(9, 2)};
  const std::vector<Completion> free_run = generate(decoder, prompts, options);
  options.draw.eos_token_ids = {299, free_run[0].token_ids[4]};
  std::vector<std::vector<int32_t>> streamed(2);
  const std::vector<Completion> out =
      generate(decoder, prompts, options,
               [&](size_t sample, int32_t token) { streamed[sample].push_back(token); });
  EXPECT_EQ(out[0].finish_reason, FinishReason::kEos);
  EXPECT_LE(out[0].token_ids.size(), 5u);
  EXPECT_EQ(out[0].token_ids.back(), options.draw.eos_token_ids[1]);
  EXPECT_EQ(out[0].logps.size(), out[0].token_ids.size());
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(streamed[i], out[i].token_ids);
  EXPECT_TRUE(generate(decoder, {}, options).empty());
}

// Frequencies of the first sampled token over many seeds against the softmax.
TEST(Generate, SamplesFromTheDistribution) {
  ModelConfig config = small_config();
  config.vocab_size = 12;
  config.initializer_range = 0.15;
  const Decoder decoder = Decoder::random(config, 7, at::kFloat);
  const std::vector<std::vector<int32_t>> prompts(4000, std::vector<int32_t>{3, 5});
  const at::Tensor states = decoder.hidden(pack_rows({prompts[0]}));
  const at::Tensor logits = decoder.logits(states)[1].to(at::kDouble);

  // All prompts are the same and take one token each.
  GenerateOptions options;
  options.draw.max_new_tokens = 1;
  options.max_batch = 4000;
  struct Setting {
    double temperature, top_p;
    int64_t top_k;
  };
  for (const Setting& setting :
       {Setting{1.0, 1.0, 0}, Setting{0.5, 1.0, 0}, Setting{1.0, 1.0, 3}, Setting{1.0, 0.6, 0}}) {
    options.draw.sampling.temperature = setting.temperature;
    options.draw.sampling.top_p = setting.top_p;
    options.draw.sampling.top_k = setting.top_k;

    // The softmax without what top_k and top_p cut off.
    at::Tensor expected = at::softmax(logits / setting.temperature, 0);
    const auto [sorted, order] = expected.sort(0, true);
    double before = 0;
    for (int64_t rank = 0; rank < 12; ++rank) {
      const bool cut = (setting.top_k > 0 && rank >= setting.top_k) || before >= setting.top_p;
      before += sorted[rank].item<double>();
      if (cut) expected[order[rank].item<int64_t>()] = 0;
    }
    expected /= expected.sum();

    // Each prompt draws with a noise of its own.
    at::Tensor counts = at::zeros({12}, at::kDouble);
    for (const Completion& completion : generate(decoder, prompts, options)) {
      counts[completion.token_ids[0]] += 1;
      EXPECT_NEAR(completion.logps[0],
                  at::log_softmax(logits, 0)[completion.token_ids[0]].item<double>(), 1e-4);
    }
    EXPECT_LT((counts / 4000 - expected).abs().max().item<double>(), 0.03)
        << setting.temperature << setting.top_p << setting.top_k;
    EXPECT_EQ(counts.masked_select(expected == 0).sum().item<double>(), 0);
  }
}

TEST(Generate, RefusesOptionsThatMakeNoSense) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  auto run = [&](GenerateOptions options, std::vector<std::vector<int32_t>> prompts) {
    return code_of([&] { generate(decoder, prompts, options); });
  };
  EXPECT_EQ(run({.draw = {.max_new_tokens = 0}}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.draw = {.sampling = {.temperature = -1}}}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.draw = {.sampling = {.top_p = 0}}}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.draw = {.sampling = {.top_k = -1}}}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.max_batch = 0}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({}, {{1}, {}}), ErrorCode::kInvalidArgument);
  auto weights = tensors_of(decoder);
  weights[0].second.fill_(NAN);
  EXPECT_EQ(code_of([&] { generate(Decoder(small_config(), weights), {{1}}, {}); }),
            ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace retort::models
