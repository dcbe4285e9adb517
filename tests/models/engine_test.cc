// The engine's scheduling: what is computed with what, in which blocks, must not show in the
// numbers.
#include "models/generation/engine.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <limits>
#include <map>

#include "tests/models/engine_support.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

GenerationRequest sampled_request(size_t prompts, int64_t num_generations,
                                  int64_t max_new_tokens = 20) {
  return {.prompts = engine_prompts(prompts),
          .num_generations = num_generations,
          .draw = {.sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 11},
                   .max_new_tokens = max_new_tokens}};
}

class EngineTest : public testing::Test {
 protected:
  Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  std::vector<Completion> run(const GenerationRequest& request,
                              EngineOptions options = {.num_blocks = 200}) {
    return Engine(decoder, options).run(request);
  }
};

TEST_F(EngineTest, LogProbabilitiesAreThoseOfAFullForward) {
  const auto request = sampled_request(4, 2);
  const auto out = run(request);
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<int32_t> ids = request.prompts[i / 2];
    ASSERT_EQ(out[i].token_ids.size(), 20u);
    for (size_t t = 0; t < out[i].token_ids.size(); ++t) {
      const int32_t token = out[i].token_ids[t];
      EXPECT_NEAR(out[i].logps[t], next_log_probs(decoder, ids)[token].item<double>(), 1e-5)
          << i << " " << t;
      ids.push_back(token);
    }
  }
}

TEST_F(EngineTest, BitsDoNotDependOnWhatIsComputedTogether) {
  const auto request = sampled_request(6, 3);
  const auto expected = run(request);
  expect_same_bits(run(request), expected, "again");
  for (const EngineOptions& options :
       {EngineOptions{.num_blocks = 200, .max_tokens_per_step = 1, .max_sequences = 1},
        EngineOptions{.num_blocks = 200, .max_tokens_per_step = 7, .max_sequences = 5},
        EngineOptions{.block_tokens = 32, .num_blocks = 100, .max_sequences = 4},
        EngineOptions{.num_blocks = 200, .share_prefixes = false}}) {
    expect_same_bits(run(request, options), expected,
                     "sequences " + std::to_string(options.max_sequences));
  }

  // Nor on the number of threads.
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 2);
  expect_same_bits(run(request), expected, "more threads");
  at::set_num_threads(threads);

  // Each prompt alone, with the numbers its samples had.
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    GenerationRequest alone = request;
    alone.prompts = {request.prompts[p]};
    alone.sample_ids = {3 * p, 3 * p + 1, 3 * p + 2};
    expect_same_bits(run(alone),
                     {expected.begin() + static_cast<long>(3 * p),
                      expected.begin() + static_cast<long>(3 * p + 3)},
                     "alone");
  }
}

TEST_F(EngineTest, SamplesDifferAndSeedsMatter) {
  auto request = sampled_request(1, 4);
  const auto out = run(request);
  EXPECT_NE(out[0].token_ids, out[1].token_ids);
  request.draw.sampling.seed = 12;
  EXPECT_NE(run(request)[0].token_ids, out[0].token_ids);
}

TEST_F(EngineTest, SamplesOfAPromptShareItsBlocks) {
  GenerationRequest request = sampled_request(1, 8, 4);
  request.prompts = {engine_tokens(70, 3)};  // 4 full blocks and 6 tokens; 4 more stay in the fifth
  Engine shared(decoder, {.num_blocks = 200});
  const auto out = shared.run(request);
  EXPECT_EQ(shared.stats().peak_used_blocks, 4 + 8);
  EXPECT_EQ(shared.stats().used_blocks, 0);
  EXPECT_EQ(shared.stats().rows, 70 + 8 * 3);
  GenerationRequest apart = request;  // as eight prompts: nothing is shared within a step
  apart.prompts.assign(8, request.prompts[0]);
  apart.num_generations = 1;
  Engine separate(decoder,
                  {.num_blocks = 200, .max_tokens_per_step = 1000, .share_prefixes = false});
  expect_same_bits(separate.run(apart), out, "without sharing");
  EXPECT_EQ(separate.stats().peak_used_blocks, 8 * 5);
  EXPECT_EQ(separate.stats().cached_blocks, 0);
}

TEST_F(EngineTest, AConversationContinuesFromTheCache) {
  Engine engine(decoder, {.num_blocks = 40});
  GenerationRequest first{.prompts = {engine_tokens(50, 1)},
                          .draw = {.sampling = {.temperature = 0}, .max_new_tokens = 30}};
  const auto answer = engine.run(first);
  EXPECT_EQ(engine.stats().reused_tokens, 0);
  GenerationRequest second = first;
  second.prompts[0].insert(second.prompts[0].end(), answer[0].token_ids.begin(),
                           answer[0].token_ids.end());
  const auto more = engine.run(second);
  EXPECT_EQ(engine.stats().reused_tokens, 64);  // of 50 + 29 computed tokens, the full blocks
  expect_same_bits(more, run(second), "fresh engine");
  // With other weights nothing of it may be used.
  for (const auto& parameter : decoder.parameters())
    parameter.value.mul_(1.1);
  engine.weights_changed();
  EXPECT_EQ(engine.stats().cached_blocks, 0);
  expect_same_bits(engine.run(second), run(second), "new weights");
  EXPECT_EQ(engine.stats().reused_tokens, 64);
}

TEST_F(EngineTest, PreemptionDoesNotShow) {
  const auto request = sampled_request(6, 3, 60);
  const auto expected = run(request);
  for (const int64_t blocks : {10, 13, 17, 24, 40}) {  // the longest sequence needs 10
    for (const bool share : {true, false}) {
      Engine engine(decoder, {.num_blocks = blocks,
                              .max_tokens_per_step = 32,
                              .max_sequences = 8,
                              .share_prefixes = share});
      expect_same_bits(engine.run(request), expected, std::to_string(blocks) + " blocks");
      if (blocks == 17) {
        EXPECT_GT(engine.stats().preemptions, 0);
      }
      EXPECT_EQ(engine.stats().used_blocks, 0);
      EXPECT_LE(engine.stats().peak_used_blocks, blocks);
    }
  }
}

TEST_F(EngineTest, TheScheduleIsAFunctionOfTheRequests) {
  std::vector<EngineStats> runs;
  for (int i = 0; i < 2; ++i) {
    Engine engine(decoder, {.num_blocks = 17, .max_tokens_per_step = 32, .max_sequences = 8});
    engine.run(sampled_request(6, 3, 60));
    runs.push_back(engine.stats());
  }
  EXPECT_EQ(runs[0].steps, runs[1].steps);
  EXPECT_EQ(runs[0].rows, runs[1].rows);
  EXPECT_EQ(runs[0].preemptions, runs[1].preemptions);
}

TEST_F(EngineTest, RequestsAreServedInOrderOrMerged) {
  const auto first = sampled_request(3, 2);
  const auto second = sampled_request(5, 1, 9);
  const auto expected_first = run(first);
  const auto expected_second = run(second);
  for (const bool merge : {false, true}) {
    Engine engine(decoder, {.num_blocks = 200, .merge_requests = merge});
    const uint64_t a = engine.submit(first);
    const uint64_t b = engine.submit(second);
    EXPECT_THROW(engine.weights_changed(), Error);
    EXPECT_THROW(engine.take(a), Error);
    while (!engine.finished(a))
      ASSERT_TRUE(engine.step());
    EXPECT_EQ(engine.finished(b), merge);  // the second is shorter
    while (engine.step()) {
    }
    EXPECT_TRUE(engine.idle());
    expect_same_bits(engine.take(a), expected_first, "first");
    expect_same_bits(engine.take(b), expected_second, "second");
    EXPECT_THROW(engine.take(b), Error);
    EXPECT_EQ(engine.stats().used_blocks, 0);
  }
}

TEST_F(EngineTest, EveryPromptMayHaveItsOwnLength) {
  GenerationRequest request = sampled_request(4, 1);
  const auto expected = run(request);
  request.max_new_tokens_of_prompt = {1, 20, 5, 13};
  std::map<size_t, std::vector<int32_t>> streamed;
  std::vector<size_t> order;
  Engine engine(decoder, {.num_blocks = 200});
  const auto out = engine.run(
      request, {.on_token = [&](size_t i, int32_t token, float) { streamed[i].push_back(token); },
                .on_completion =
                    [&](size_t i, const Completion& result) {
                      order.push_back(i);
                      EXPECT_EQ(result.finish_reason, FinishReason::kLength);
                    }});
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_EQ(out[i].token_ids.size(), static_cast<size_t>(request.max_new_tokens_of_prompt[i]));
    EXPECT_TRUE(std::equal(out[i].token_ids.begin(), out[i].token_ids.end(),
                           expected[i].token_ids.begin()));
    EXPECT_EQ(streamed[i], out[i].token_ids);
  }
  EXPECT_EQ(order, (std::vector<size_t>{0, 2, 3, 1}));
}

TEST_F(EngineTest, ACompletionMayEndAtItsFirstToken) {
  GenerationRequest request{.prompts = {engine_tokens(5, 1)},
                            .draw = {.sampling = {.temperature = 0}, .max_new_tokens = 1}};
  request.draw.eos_token_ids = {run(request)[0].token_ids[0]};
  request.draw.max_new_tokens = 50;
  const auto out = run(request);
  EXPECT_EQ(out[0].token_ids.size(), 1u);
  EXPECT_EQ(out[0].finish_reason, FinishReason::kEos);
}

TEST_F(EngineTest, CancellationFreesTheBlocks) {
  const auto request = sampled_request(6, 3, 60);
  Engine engine(decoder, {.num_blocks = 40, .max_tokens_per_step = 32, .max_sequences = 8});
  for (const int steps : {0, 1, 3, 40}) {
    int64_t delivered = 0;
    const uint64_t id =
        engine.submit(request, {.on_completion = [&](size_t, const Completion&) { ++delivered; }});
    for (int i = 0; i < steps; ++i)
      engine.step();
    EXPECT_EQ(engine.stats().used_blocks > 0, steps > 0);
    EXPECT_TRUE(engine.cancel(id));
    EXPECT_FALSE(engine.cancel(id));
    EXPECT_EQ(engine.stats().used_blocks, 0);
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(delivered, 18);
    for (const Completion& completion : engine.take(id)) {
      EXPECT_EQ(completion.finish_reason, FinishReason::kCancelled);
      EXPECT_EQ(completion.logps.size(), completion.token_ids.size());
    }
  }

  // From a callback: the tokens so far stay, finished completions stay finished, the next request
  // is not disturbed.
  uint64_t id = 0;
  int tokens = 0;
  id = engine.submit(request, {.on_token = [&](size_t, int32_t, float) {
                       if (++tokens == 30) engine.cancel(id);
                     }});
  const uint64_t next = engine.submit(sampled_request(2, 2));
  while (engine.step()) {
  }
  size_t kept = 0;
  for (const Completion& completion : engine.take(id))
    kept += completion.token_ids.size();
  EXPECT_GE(kept, 30u);
  EXPECT_LT(kept, 30u + 8);
  expect_same_bits(engine.take(next), run(sampled_request(2, 2)), "after a cancelled one");
}

TEST_F(EngineTest, CacheBytesAreTheFormulas) {
  const Engine engine(decoder, {.num_blocks = 5});
  EXPECT_EQ(engine.stats().kv_bytes, 2 * 2 * 5 * 16 * 2 * 16 * 4);
  ModelConfig odd = engine_config();
  odd.head_dim = 12;
  const Decoder padded = Decoder::random(odd, 1, at::kFloat);
  EXPECT_EQ(Engine(padded, {.num_blocks = 5}).stats().kv_bytes, 2 * 2 * 5 * 16 * 2 * 16 * 4);
  EXPECT_EQ(Engine(decoder, {.kv_cache_bytes = 100000}).stats().num_blocks,
            100000 / (2 * 2 * 16 * 2 * 16 * 4));
}

TEST_F(EngineTest, RefusalsNameTheirReason) {
  Engine engine(decoder, {.num_blocks = 8});
  const auto refused = [&](const std::function<void(GenerationRequest&)>& change) {
    GenerationRequest request{.prompts = {{1, 2}, {3}}, .draw = {.max_new_tokens = 10}};
    change(request);
    const Error error = test::error_of([&] { engine.submit(request); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    EXPECT_TRUE(engine.idle());
    return std::string(error.what());
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };

  // A request.
  has(refused([](auto& r) { r.prompts[1].clear(); }), "prompt must be at least one token");
  has(refused([](auto& r) { r.prompts[1] = {300}; }), "outside the vocabulary");
  has(refused([](auto& r) { r.draw.max_new_tokens = 128; }),
      "prompt 0 of 2 tokens with 128 new ones exceeds the KV cache's tokens 128");
  has(refused([](auto& r) { r.draw.max_new_tokens = 511; }), "max_position_embeddings 512");
  has(refused([](auto& r) { r.draw.max_new_tokens = 0; }), "max_new_tokens");
  has(refused([](auto& r) { r.draw.max_new_tokens = std::numeric_limits<int64_t>::max(); }),
      "max_position_embeddings 512");
  has(refused([](auto& r) { r.num_generations = 0; }), "num_generations");
  has(refused([](auto& r) { r.sample_ids = {1}; }), "sample_ids");
  has(refused([](auto& r) { r.max_new_tokens_of_prompt = {1}; }), "max_new_tokens_of_prompt");
  has(refused([](auto& r) { r.draw.stop = {"x"}; }), "detokenizer");
  has(refused([](auto& r) { r.prompts.clear(); }), "prompts");
  has(refused([](auto& r) { r.draw.sampling.min_p = 1.5; }), "min_p");
  has(refused([](auto& r) { r.draw.sampling.repetition_penalty = 0; }), "repetition_penalty");
  has(refused([](auto& r) { r.draw.sampling = {.temperature = 0, .top_p = 0.9}; }), "no effect");
  has(refused([](auto& r) { r.draw.sampling = {.temperature = 0, .typical_p = 0.9}; }),
      "no effect");
  has(refused([](auto& r) { r.draw.sampling.typical_p = 0; }), "typical_p");
  has(refused([](auto& r) { r.draw.sampling.presence_penalty = 2.1; }), "presence_penalty");
  has(refused([](auto& r) { r.draw.sampling.frequency_penalty = -2.1; }), "frequency_penalty");
  has(refused([](auto& r) { r.draw.min_new_tokens = r.draw.max_new_tokens + 1; }),
      "min_new_tokens must be at most max_new_tokens");
  has(refused([](auto& r) { r.draw.min_new_tokens = -1; }), "min_new_tokens");

  // Options of an engine.
  test::expect_refused("block_tokens", [&] { Engine(decoder, {.block_tokens = 20}); });
  test::expect_refused("kv_cache_bytes", [&] { Engine(decoder, {.kv_cache_bytes = 10}); });
  test::expect_refused("max_tokens_per_step",
                       [&] { Engine(decoder, {.max_tokens_per_step = 3, .max_sequences = 4}); });
}

// Keys in the cache keep the rotation that they came in with, so nothing is drawn that grows into
// other frequencies: training on it would compute other numbers at every place.
TEST_F(EngineTest, NoSequenceGrowsIntoOtherFrequencies) {
  for (const char* type : {"longrope", "dynamic"}) {
    ModelConfig config = engine_config();
    config.rope.type = type;
    config.rope.factor = 4;
    config.rope.original_max_position_embeddings = 40;
    config.rope.short_factor = std::vector<double>(8, 1.0);
    config.rope.long_factor = std::vector<double>(8, 4.0);
    const Decoder long_decoder = Decoder::random(config, 7, at::kFloat);
    Engine engine(long_decoder, {.num_blocks = 20});
    GenerationRequest request{.prompts = {engine_tokens(3, 1)},
                              .draw = {.sampling = {.temperature = 0}, .max_new_tokens = 37}};

    // To the last token that has the frequencies of a short sequence.
    const Completion drawn = engine.run(request).at(0);
    ASSERT_EQ(drawn.token_ids.size(), 37u);
    std::vector<int32_t> ids = request.prompts[0];
    ids.insert(ids.end(), drawn.token_ids.begin(), drawn.token_ids.end() - 1);
    const at::Tensor before = next_log_probs(long_decoder, ids);
    EXPECT_NEAR(drawn.logps.back(), before[drawn.token_ids.back()].item<double>(), 1e-5) << type;

    request.draw.max_new_tokens = 38;
    const Error error = test::error_of([&] { engine.submit(request); });
    EXPECT_NE(std::string(error.what())
                  .find("up to which rope type '" + std::string(type) + "' rotates alike, 40"),
              std::string::npos)
        << error.what();

    // The place of the last token but two, as a part of what was drawn and of what was refused.
    const auto at_last_place = [&](std::vector<int32_t> tokens) {
      const size_t place = ids.size() - 1;
      tokens.resize(ids.size() + 2, 7);
      const at::Tensor states = long_decoder.hidden(pack_rows({tokens}));
      return at::log_softmax(
          long_decoder.logits(states)[static_cast<int64_t>(place)].to(at::kDouble), 0);
    };
    EXPECT_GT((at_last_place(ids) - before).abs().max().item<double>(), 1e-3) << type;
  }
}

TEST_F(EngineTest, AnotherDecodersWeightsTakeOver) {
  const auto request = sampled_request(3, 2);
  const Decoder other = Decoder::random(engine_config(), 8, at::kFloat);
  Engine engine(decoder, {.num_blocks = 200});
  engine.run(request);
  const auto parameters = decoder.parameters();
  const auto others = other.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].value.copy_(others[i].value);
  engine.weights_changed();
  expect_same_bits(engine.run(request), Engine(other, {.num_blocks = 200}).run(request),
                   "the other decoder");
}

}  // namespace
}  // namespace retort::models
