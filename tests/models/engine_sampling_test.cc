// Draws: their distribution, their noise, the probabilities that are reported, stop strings; and
// scoring.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/random.h"
#include "models/generation/sampler.h"
#include "models/generation/score.h"
#include "tests/models/engine_support.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Of `candidates`, those that say about as much as is expected (Meister et al. 2022), in their
// order.
std::vector<size_t> typical(const std::vector<size_t>& candidates,
                            const std::vector<double>& weights, double mass) {
  double total = 0;
  for (const size_t id : candidates)
    total += weights[id];
  double entropy = 0;
  for (const size_t id : candidates)
    entropy -= weights[id] / total * std::log(weights[id] / total);
  const auto distance = [&](size_t id) {
    return std::abs(-std::log(weights[id] / total) - entropy);
  };
  std::vector<size_t> order = candidates;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return distance(a) < distance(b); });
  double sum = 0;
  size_t last = 0;
  for (; last + 1 < order.size(); ++last)
    if ((sum += weights[order[last]] / total) >= mass) break;
  std::vector<size_t> kept;
  for (const size_t id : candidates)
    if (distance(id) <= distance(order[last])) kept.push_back(id);
  return kept;
}

// Log-probabilities of the distribution that options describe, by a sort and in fp64; kNever for
// tokens cut off. `seen`: prompt and completion; `generated`: the completion.
std::vector<double> reference(std::vector<double> scores, const SamplingOptions& options,
                              const std::vector<int32_t>& seen,
                              const std::vector<int32_t>& generated = {}) {
  // Repetition penalty; then those of what was generated, a frequency for each time.
  for (const int32_t id : std::set<int32_t>(seen.begin(), seen.end())) {
    double& score = scores[static_cast<size_t>(id)];
    score = score < 0 ? score * options.repetition_penalty : score / options.repetition_penalty;
  }
  for (const int32_t id : generated)
    scores[static_cast<size_t>(id)] -= options.frequency_penalty;
  for (const int32_t id : std::set<int32_t>(generated.begin(), generated.end()))
    scores[static_cast<size_t>(id)] -= options.presence_penalty;

  // The whole order, most likely first, and the weights at the temperature.
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  const double largest = scores[order[0]];
  std::vector<double> weights;
  for (const double score : scores)
    weights.push_back(std::exp((score - largest) / options.temperature));
  const auto mass = [&](size_t count) {
    double total = 0;
    for (size_t rank = 0; rank < count; ++rank)
      total += weights[order[rank]];
    return total;
  };

  // top_k, then top_p of what it leaves, then min_p.
  size_t kept = options.top_k > 0 ? std::min(scores.size(), static_cast<size_t>(options.top_k))
                                  : scores.size();
  if (options.top_p < 1) {
    const double wanted = options.top_p * mass(kept);
    double before = 0;
    size_t in_mass = 0;
    for (; in_mass < kept && before < wanted; ++in_mass)
      before += weights[order[in_mass]];
    kept = std::max<size_t>(1, in_mass);
  }
  while (weights[order[kept - 1]] < options.min_p)
    --kept;

  // Then typical_p; normalised over what is left.
  order.resize(kept);
  if (options.typical_p < 1) order = typical(order, weights, options.typical_p);
  const double total = mass(order.size());
  std::vector<double> result(scores.size(), kNever);
  for (const size_t id : order)
    result[id] = std::log(weights[id] / total);
  return result;
}

std::vector<float> some_logits(size_t size, double spread, uint64_t seed) {
  std::vector<float> logits;
  for (size_t i = 0; i < size; ++i)
    logits.push_back(static_cast<float>(spread * std::log(random_uniform(seed, i)) + 1));
  return logits;
}

const std::vector<SamplingOptions>& settings() {
  static const std::vector<SamplingOptions> all{
      {},
      {.temperature = 0.5},
      {.temperature = 1.7},
      {.top_p = 0.6},
      {.top_k = 3},
      {.min_p = 0.3},
      {.repetition_penalty = 1.8},
      {.temperature = 0.8, .top_p = 0.9, .top_k = 6, .min_p = 0.05, .repetition_penalty = 0.7},
      {.typical_p = 0.5},
      {.presence_penalty = 0.9},
      {.presence_penalty = -0.4, .frequency_penalty = 0.6},
      {.temperature = 1.4,
       .top_p = 0.95,
       .top_k = 9,
       .typical_p = 0.7,
       .repetition_penalty = 1.2,
       .presence_penalty = 0.3,
       .frequency_penalty = -0.2}};
  return all;
}

// What an engine keeps of a sequence with these options.
DrawHistory history_of(const SamplingOptions& options, const std::vector<int32_t>& seen,
                       const std::vector<TokenCount>& counts) {
  DrawHistory history{.seen = seen, .generated = {}, .barred = {}};
  if (options.penalises_generated()) history.generated = counts;
  return history;
}

TEST(Sampler, FrequenciesPassAChiSquareTest) {
  constexpr int kDraws = 40000;
  const std::vector<float> logits = some_logits(12, 1.0, 5);
  const std::vector<int32_t> seen{2, 3, 7};
  const std::vector<TokenCount> counts{{.id = 3, .count = 2}, {.id = 7, .count = 1}};
  SamplerScratch scratch;
  for (size_t s = 0; s < settings().size(); ++s) {
    const DrawHistory history = history_of(settings()[s], seen, counts);
    const std::vector<double> expected =
        reference({logits.begin(), logits.end()}, settings()[s], seen, {3, 7, 3});
    std::vector<int> counts(12, 0);
    for (int draw = 0; draw < kDraws; ++draw) {
      const Choice choice = choose_token(logits.data(), 12, settings()[s], history,
                                         static_cast<uint64_t>(draw), 3, scratch);
      ++counts[static_cast<size_t>(choice.token)];
      ASSERT_NEAR(choice.sampling_logp, expected[static_cast<size_t>(choice.token)], 1e-5) << s;
    }

    // Pearson's statistic; a token that was cut off must never be drawn.
    double statistic = 0;
    for (size_t i = 0; i < 12; ++i) {
      const double mean = kDraws * std::exp(expected[i]);
      if (mean > 0) {
        statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
      } else {
        EXPECT_EQ(counts[i], 0) << s << " " << i;
      }
    }
    EXPECT_LT(statistic, 31.3) << s;  // 11 degrees of freedom, 0.1 %
  }
}

// A long vocabulary: several pieces of every loop, and cuts inside a bin of the histogram, with
// equal logits among them.
TEST(Sampler, LargeVocabularyFollowsTheDefinition) {
  constexpr int64_t kSize = 10007;
  std::vector<float> logits = some_logits(kSize, 1.5, 6);
  for (size_t i = 0; i < kSize; i += 3)
    logits[i] = std::round(logits[i] * 4) / 4;
  std::vector<SamplingOptions> all = settings();
  all.push_back({.top_k = 1});
  all.push_back({.top_k = 2500});
  all.push_back({.top_p = 0.99999});
  all.push_back({.top_p = 1e-9});
  all.push_back({.typical_p = 0.05});
  all.push_back({.temperature = 0.5, .typical_p = 0.97});
  SamplerScratch scratch;
  for (size_t s = 0; s < all.size(); ++s) {
    const std::vector<double> expected =
        reference({logits.begin(), logits.end()}, all[s], {5, 17}, {17, 17});
    const std::vector<int32_t> seen{5, 17};
    const std::vector<TokenCount> counts{{.id = 17, .count = 2}};
    const DrawHistory history = history_of(all[s], seen, counts);
    for (uint64_t position = 0; position < 40; ++position) {
      const Choice choice =
          choose_token(logits.data(), kSize, all[s], history, 9, position, scratch);

      // The Gumbel maximum over base/random.h's noise.
      double best = kNever;
      int32_t winner = -1;
      for (size_t i = 0; i < kSize; ++i) {
        const double score = expected[i] + random_gumbel(all[s].seed, 9, position, i);
        if (score > best) {
          best = score;
          winner = static_cast<int32_t>(i);
        }
      }
      EXPECT_EQ(choice.token, winner) << s << " " << position;
      EXPECT_NEAR(choice.sampling_logp, expected[static_cast<size_t>(choice.token)], 1e-5) << s;
    }
  }
}

// Padding rows of a head are logits like others to the model, but no ids to draw.
TEST(Sampler, DrawsOnlyIdsBelowNumIds) {
  std::vector<float> logits = some_logits(40, 1.0, 3);
  for (size_t i = 30; i < 40; ++i)
    logits[i] = 9;  // by far the most probable
  double normaliser = 0;
  for (const float logit : logits)
    normaliser += std::exp(static_cast<double>(logit));
  SamplerScratch scratch;
  for (SamplingOptions options : settings()) {
    options.num_ids = 30;
    const auto expected = reference({logits.begin(), logits.begin() + 30}, options, {});
    for (uint64_t sample = 0; sample < 200; ++sample) {
      const Choice choice = choose_token(logits.data(), 40, options, {}, sample, 0, scratch);
      ASSERT_LT(choice.token, 30);
      EXPECT_NEAR(choice.sampling_logp, expected[static_cast<size_t>(choice.token)], 1e-4);
      EXPECT_NEAR(choice.logp, logits[static_cast<size_t>(choice.token)] - std::log(normaliser),
                  1e-4)
          << "over the whole head";
    }
  }
  EXPECT_LT(
      choose_token(logits.data(), 40, {.temperature = 0, .num_ids = 30}, {}, 0, 0, scratch).token,
      30);
  EXPECT_GE(choose_token(logits.data(), 40, {.temperature = 0}, {}, 0, 0, scratch).token, 30);
}

TEST(Sampler, GreedyTakesTheFirstMaximumAndBadLogitsAreSeen) {
  std::vector<float> logits = some_logits(3000, 1, 7);
  logits[1200] = 9;
  logits[2100] = 9;
  SamplerScratch scratch;
  const Choice choice = choose_token(logits.data(), 3000, {.temperature = 0}, {}, 0, 0, scratch);
  EXPECT_EQ(choice.token, 1200);
  EXPECT_EQ(choice.sampling_logp, 0);
  const std::vector<int32_t> seen{1200};
  EXPECT_EQ(choose_token(logits.data(), 3000, {.temperature = 0, .repetition_penalty = 1.01},
                         {.seen = seen, .generated = {}, .barred = {}}, 0, 0, scratch)
                .token,
            2100);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> broken = logits;
    broken[777] = bad;
    test::message_of([&] { choose_token(broken.data(), 3000, {}, {}, 0, 0, scratch); },
                     ErrorCode::kCorrupt);
  }
}

// Through the engine: penalty over prompt and completion, both log-probabilities against fp64.
TEST(EngineSampling, LogProbabilitiesAgreeWithFp64) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  GenerationRequest request{
      .prompts = engine_prompts(3), .num_generations = 2, .draw = {.max_new_tokens = 15}};
  for (const SamplingOptions& sampling : settings()) {
    request.draw.sampling = sampling;
    const auto out = Engine(decoder, {.num_blocks = 100}).run(request);
    for (size_t i = 0; i < out.size(); ++i) {
      std::vector<int32_t> ids = request.prompts[i / 2];
      for (size_t t = 0; t < 15; ++t) {
        const at::Tensor logits =
            decoder.logits(decoder.hidden(pack_rows({ids})))[-1].to(at::kDouble).contiguous();
        const double* begin = logits.const_data_ptr<double>();
        const auto first = ids.begin() + static_cast<std::ptrdiff_t>(request.prompts[i / 2].size());
        const auto expected =
            reference({begin, begin + logits.numel()}, sampling, ids, {first, ids.end()});
        const int32_t token = out[i].token_ids[t];
        ASSERT_NEAR(out[i].sampling_logps[t], expected[static_cast<size_t>(token)], 2e-5);
        ASSERT_NEAR(out[i].logps[t], at::log_softmax(logits, 0)[token].item<double>(), 1e-5);
        ids.push_back(token);
      }
    }
  }
}

std::string spell(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids)
    text += "<" + std::to_string(id) + ">";
  return text;
}

TEST(EngineSampling, StopStringsEndACompletion) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  GenerationRequest request{.prompts = engine_prompts(4),
                            .draw = {.sampling = {.seed = 3}, .max_new_tokens = 20}};
  Engine engine(decoder, {.num_blocks = 100}, spell);
  const auto whole = engine.run(request);
  const auto& ids = whole[2].token_ids;
  const std::string across = spell(std::span(ids).subspan(6, 3));
  request.draw.stop = {"<300>",
                       across.substr(2, across.size() - 3)};  // begins and ends inside tokens
  const auto out = engine.run(request);
  EXPECT_EQ(out[2].finish_reason, FinishReason::kStop);
  EXPECT_EQ(out[2].token_ids, std::vector<int32_t>(ids.begin(), ids.begin() + 9));
  for (const size_t i : {0, 1, 3}) {
    EXPECT_EQ(out[i].finish_reason, FinishReason::kLength);
    EXPECT_EQ(out[i].token_ids, whole[i].token_ids);
  }
}

// Special tokens are no part of the text that is searched, so they are looked for by id.
TEST(EngineSampling, StopTokensEndACompletion) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  GenerationRequest request{.prompts = engine_prompts(1),
                            .draw = {.sampling = {.seed = 3}, .max_new_tokens = 20}};
  Engine engine(decoder, {.num_blocks = 100});
  const auto ids = engine.run(request)[0].token_ids;
  const auto first = std::find(ids.begin(), ids.end(), ids[6]);

  request.draw.stop_token_ids = {ids[6]};
  const Completion stopped = engine.run(request)[0];
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.token_ids, std::vector<int32_t>(ids.begin(), first + 1));
  request.draw.eos_token_ids = {ids[6]};
  EXPECT_EQ(engine.run(request)[0].finish_reason, FinishReason::kEos) << "an end token comes first";
}

// Ends are barred in the first tokens, where the rest is normalised without them; the model's own
// log-probabilities stay.
TEST(EngineSampling, NoEndIsDrawnBeforeTheLeastNumberOfTokens) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  GenerationRequest request{.prompts = engine_prompts(1),
                            .num_generations = 20,
                            .draw = {.sampling = {.seed = 3}, .max_new_tokens = 12}};
  Engine engine(decoder, {.num_blocks = 200}, spell);
  for (int32_t id = 0; id < 300; id += 2)
    (id % 4 == 0 ? request.draw.eos_token_ids : request.draw.stop_token_ids).push_back(id);
  for (const auto& completion : engine.run(request))
    EXPECT_LT(completion.token_ids.size(), 12u) << "every other token ends it";

  request.draw.min_new_tokens = 5;
  const auto out = engine.run(request);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto& ids = out[i].token_ids;
    ASSERT_GT(ids.size(), 5u);
    for (size_t t = 0; t < 5; ++t)
      EXPECT_EQ(ids[t] % 2, 1) << i << " " << t;
    EXPECT_LT(out[i].logps[0], out[i].sampling_logps[0]) << "half of the mass is barred";
    EXPECT_NEAR(out[i].logps[5], out[i].sampling_logps[5], 1e-5) << "all may be drawn again";
  }

  // At temperature 0 too, and texts are not looked for in them either.
  request.num_generations = 1;
  request.draw.sampling.temperature = 0;
  const auto coldest = engine.run(request)[0].token_ids;
  for (size_t t = 0; t < 5; ++t)
    EXPECT_EQ(coldest.at(t) % 2, 1) << t;
  request.draw.eos_token_ids = request.draw.stop_token_ids = {};
  const auto greedy = engine.run(request)[0].token_ids;
  request.draw.stop = {spell(std::span(greedy).first(1)), spell(std::span(greedy).subspan(7, 1))};
  const Completion stopped = engine.run(request)[0];
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_GT(stopped.token_ids.size(), 5u);
  EXPECT_LE(stopped.token_ids.size(), 8u);
}

TEST(EngineSampling, OtherDtypesAreTheirValuesInFloat32) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    ModelConfig config = engine_config();
    config.family = Family::kQwen3;
    config.qk_norm = true;
    const Decoder half = Decoder::random(config, 7, dtype);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [name, value, shard] : half.parameters())
      tensors.emplace_back(name, value.to(at::kFloat));
    const Decoder whole(config, tensors);
    const GenerationRequest request{.prompts = engine_prompts(3), .draw = {.max_new_tokens = 10}};
    expect_same_bits(Engine(half, {.num_blocks = 100}).run(request),
                     Engine(whole, {.num_blocks = 100}).run(request), "half");
  }
}

TEST(Score, IsTheLogSoftmaxOfAFullForward) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Decoder decoder = Decoder::random(engine_config(), 7, dtype);
    const ScoreRequest request{.sequences = engine_prompts(6),
                               .prompt_lengths = {1, 20, 5, 53, 70, 1}};
    for (const ScoreOptions& options :
         {ScoreOptions{},
          ScoreOptions{.max_tokens_per_forward = 60, .vocab_chunk = 77, .row_chunk = 9}}) {
      const auto scores = score(decoder, request, options);
      ASSERT_EQ(scores.size(), 6u);
      for (size_t s = 0; s < 6; ++s) {
        const auto& ids = request.sequences[s];
        const auto prompt = static_cast<size_t>(request.prompt_lengths[s]);
        ASSERT_EQ(scores[s].size(), ids.size() - prompt);
        const at::Tensor all =
            at::log_softmax(decoder.logits(decoder.hidden(pack_rows({ids}))).to(at::kDouble), -1);
        for (size_t i = prompt; i < ids.size(); ++i) {
          EXPECT_NEAR(scores[s][i - prompt], all[static_cast<long>(i) - 1][ids[i]].item<double>(),
                      dtype == at::kFloat ? 1e-5 : 0.1);
        }
      }
    }
  }
}

TEST(Score, AgreesWithGeneration) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  const auto prompts = engine_prompts(3);
  const auto out = Engine(decoder, {.num_blocks = 100})
                       .run({.prompts = prompts, .draw = {.max_new_tokens = 30}});
  ScoreRequest request{.sequences = prompts};
  for (size_t i = 0; i < 3; ++i) {
    request.prompt_lengths.push_back(static_cast<int64_t>(prompts[i].size()));
    request.sequences[i].insert(request.sequences[i].end(), out[i].token_ids.begin(),
                                out[i].token_ids.end());
  }
  const auto scores = score(decoder, request);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t t = 0; t < 30; ++t)
      EXPECT_NEAR(scores[i][t], out[i].logps[t], 1e-5);
  }
}

TEST(Score, RefusesWhatDoesNotFit) {
  const Decoder decoder = Decoder::random(engine_config(), 7, at::kFloat);
  test::message_of([&] { score(decoder, {.sequences = {{1, 2}}, .prompt_lengths = {}}); });
  test::message_of([&] { score(decoder, {.sequences = {{1, 2}}, .prompt_lengths = {0}}); });
  test::message_of([&] { score(decoder, {.sequences = {{1, 2}}, .prompt_lengths = {3}}); });
  test::message_of([&] { score(decoder, {.sequences = {{}}, .prompt_lengths = {1}}); });
  test::message_of([&] { score(decoder, {.sequences = {{1, 300}}, .prompt_lengths = {1}}); });
  EXPECT_TRUE(score(decoder, {.sequences = {{1, 2}}, .prompt_lengths = {2}})[0].empty());
}

}  // namespace
}  // namespace retort::models
