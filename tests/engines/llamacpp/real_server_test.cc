// The adapter and llama.cpp's own server, on a model of ours: tokens and log-probabilities are
// those that we compute.
#include <ATen/TensorOperators.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <set>

#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "models/generation/generate.h"
#include "tests/engines/draw_statistics.h"
#include "tests/engines/llamacpp/real_server.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using models::FinishReason;
using retort::test::expect_error;
using test::RealServer, test::TinyModel, test::soon;

constexpr double kTolerance = 1e-4;  // nats; f32 throughout
// llama.cpp knows <|endoftext|> by its text; <|im_end|> is the model's.
constexpr int32_t kEndOfText = 0;
constexpr int32_t kEnd = 2;

const std::vector<int32_t> kPrompt{10, 20, 30, 320, 47};

class RealLlama : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::engines_python()) return;
    model_ = new TinyModel;
    server_ = new RealServer(model_->gguf(), {"--slots", "2", "--context", "512"});
    engine_ = server_->engine().release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    delete server_;
    delete model_;
  }
  void SetUp() override {
    if (!test::engines_python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON is not set";
  }

  static Drawn draw(const DrawRequest& request) { return engine_->draw(request, soon()).get(); }
  static DrawRequest request(int64_t tokens, double temperature, uint64_t seed = 0) {
    DrawRequest request{.prompt = kPrompt, .how = {}, .seed = seed};
    request.how.max_new_tokens = tokens;
    request.how.sampling.temperature = temperature;
    return request;
  }

  // The largest difference between the log-probabilities of a completion and ours.
  static double difference(const std::vector<int32_t>& prompt, const Drawn& drawn) {
    std::vector<int32_t> ids = prompt;
    ids.insert(ids.end(), drawn.token_ids.begin(), drawn.token_ids.end());
    const at::Tensor rows = model_->log_probs(ids);
    double largest = 0;
    for (size_t i = 0; i < drawn.token_ids.size(); ++i) {
      const double ours = model_->log_prob_after(rows, prompt.size() + i - 1, drawn.token_ids[i]);
      const double apart = std::abs(ours - double{drawn.log_probs.at(i)});
      largest = std::isnan(apart) ? INFINITY : std::max(largest, apart);
    }
    return largest;
  }

  static TinyModel* model_;
  static RealServer* server_;
  static Engine* engine_;
};
TinyModel* RealLlama::model_ = nullptr;
RealServer* RealLlama::server_ = nullptr;
Engine* RealLlama::engine_ = nullptr;

TEST_F(RealLlama, SaysWhatItServes) {
  const EngineState state = engine_->state(soon()).get();
  EXPECT_TRUE(state.served_model.ends_with("model.gguf")) << state.served_model;
  EXPECT_EQ(state.vocab_rows, model_->vocab_rows());
  EXPECT_EQ(state.context_tokens, 512);  // of a slot, not of all
  EXPECT_FALSE(state.version.empty());
}

TEST_F(RealLlama, GreedyTokensAreOurs) {
  for (const double penalty : {1.0, 1.3}) {
    DrawRequest asked = request(60, 0);
    asked.how.sampling.repetition_penalty = penalty;
    const models::Completion ours =
        models::generate(model_->decoder(), {kPrompt}, {.draw = asked.how}).front();
    const Drawn theirs = draw(asked);
    EXPECT_EQ(theirs.token_ids, ours.token_ids) << penalty;
    EXPECT_EQ(theirs.finish_reason, FinishReason::kLength);
    EXPECT_LT(difference(kPrompt, theirs), kTolerance) << penalty;
  }
}

// Two processes of ours at one server, a probe beside a run: what one draws is not changed by what
// the other asks. A request that names its slot takes the cache from under a draw on it.
TEST_F(RealLlama, AnotherProcessScoresWhileOneDraws) {
  const RealServer one_slot(model_->gguf(), {"--slots", "1", "--context", "128"});
  const auto drawing = one_slot.engine(), scoring = one_slot.engine();
  const DrawRequest asked = request(60, 0);
  const models::Completion ours =
      models::generate(model_->decoder(), {kPrompt}, {.draw = asked.how}).front();

  // Each draw has a score beside it that begins otherwise.
  for (int32_t round = 0; round < 8; ++round) {
    ScoreRequest other{.token_ids = {100 + round, 7, 8, 9, 10, 11, 12, 13}, .positions = {}};
    for (int32_t p = 0; p < 7; ++p)
      other.positions.push_back(p);
    Future<Drawn> drawn = drawing->draw(asked, soon());
    const Scored scored = scoring->score(other, soon()).get();
    EXPECT_EQ(drawn.get().token_ids, ours.token_ids) << round;
    const at::Tensor rows = model_->log_probs(other.token_ids);
    for (size_t p = 0; p < 7; ++p)
      EXPECT_NEAR(scored.given[p], model_->log_prob_after(rows, p, other.token_ids[p + 1]), 1e-4);
  }
}

// A third of these tokens are parts of characters, of which the server says nothing.
TEST_F(RealLlama, EveryDrawnTokenHasItsLogProbability) {
  size_t num_tokens = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Drawn drawn = draw(request(40, 1.0, seed));
    EXPECT_EQ(drawn.token_ids.size(), 40u);
    EXPECT_LT(difference(kPrompt, drawn), kTolerance) << seed;
    for (const int32_t id : drawn.token_ids)
      num_tokens += id >= 127 && id <= 182 ? 1 : 0;  // first bytes of longer characters
  }
  EXPECT_GT(num_tokens, 0u);
}

TEST_F(RealLlama, DrawsFromOurDistribution) {
  const auto drawn_at = [](double temperature) {
    test::DrawStatistics statistics;
    for (uint64_t seed = 0; seed < 32; ++seed) {
      const Drawn drawn = draw(request(48, temperature, seed));
      std::vector<int32_t> ids = kPrompt;
      ids.insert(ids.end(), drawn.token_ids.begin(), drawn.token_ids.end());
      const auto first = static_cast<int64_t>(kPrompt.size()) - 1;
      statistics.add(model_->log_probs(ids).slice(0, first, -1), drawn.token_ids);
    }
    std::cout << "drawn at temperature " << temperature << ": " << statistics.num_tokens()
              << " tokens, z of -log p " << statistics.surprise() << ", chi2/df of ranks "
              << statistics.rank_error() << std::endl;
    return statistics;
  };
  const test::DrawStatistics drawn = drawn_at(1);
  EXPECT_EQ(drawn.num_tokens(), 32 * 48);
  EXPECT_LT(std::abs(drawn.surprise()), 4);
  EXPECT_LT(drawn.rank_error(), 2);
  EXPECT_GT(drawn_at(1.15).surprise(), 4) << "a small change";
}

TEST_F(RealLlama, SeedsRepeatAndDiffer) {
  const DrawRequest first = request(30, 1.0, (uint64_t{1} << 40) + 5);
  const Drawn once = draw(first);
  EXPECT_EQ(draw(first).token_ids, once.token_ids);
  EXPECT_NE(draw(request(30, 1.0, 5)).token_ids, once.token_ids);
}

// Each option alone, and all together, leave the same tokens to be drawn at one position as ours
// do.
TEST_F(RealLlama, OptionsMeanWhatTheyMeanHere) {
  const int64_t last = static_cast<int64_t>(kPrompt.size()) - 1;
  const at::Tensor row = model_->log_probs(kPrompt)[last];
  models::SamplingOptions all{.temperature = 1.5, .top_p = 0.5, .top_k = 40, .min_p = 0.2};
  for (const models::SamplingOptions& sampling :
       {models::SamplingOptions{.top_k = 3}, models::SamplingOptions{.top_p = 0.3},
        models::SamplingOptions{.min_p = 0.3}, models::SamplingOptions{.num_ids = 40}, all}) {
    // Ours, by the definition: temperature, top_k, top_p, min_p.
    const at::Tensor tempered = at::log_softmax(row / sampling.temperature, -1).exp();
    const auto [values, ids] = at::topk(tempered, row.numel());
    std::set<int32_t> allowed;
    double mass = 0;
    double kept = 1;
    if (sampling.top_k > 0) kept = values.slice(0, 0, sampling.top_k).sum().item().toDouble();
    const int64_t count = sampling.top_k > 0 ? sampling.top_k : row.numel();
    for (int64_t i = 0; i < count && mass < sampling.top_p * kept; ++i) {
      const double value = values[i].item().toDouble();
      mass += value;
      const auto id = static_cast<int32_t>(ids[i].item().toLong());
      const bool barred = sampling.num_ids > 0 && id >= sampling.num_ids;
      if (value >= sampling.min_p * values[0].item().toDouble() && !barred) allowed.insert(id);
    }

    std::set<int32_t> seen;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      DrawRequest asked = request(1, sampling.temperature, seed);
      asked.how.sampling = sampling;
      seen.insert(draw(asked).token_ids.front());
    }
    EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), seen.begin(), seen.end()));
    EXPECT_GT(seen.size(), 1u);
    if (allowed.size() <= 4) {
      EXPECT_EQ(seen, allowed);
    }
  }
}

TEST_F(RealLlama, EndsAtOurTokensAlone) {
  // Ends of the server's own are tokens like any other where they are not ours.
  size_t passed = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Drawn drawn = draw(request(200, 3.0, seed));
    EXPECT_EQ(drawn.token_ids.size(), 200u);
    EXPECT_EQ(drawn.finish_reason, FinishReason::kLength);
    EXPECT_LT(difference(kPrompt, drawn), kTolerance) << seed;
    for (size_t i = 0; i + 1 < drawn.token_ids.size(); ++i)
      passed += drawn.token_ids[i] == kEnd || drawn.token_ids[i] == kEndOfText ? 1 : 0;
  }
  EXPECT_GT(passed, 0u);

  // The same draws, with the server's end as ours, and with one that it does not know.
  for (const int32_t end : {kEnd, int32_t{47}}) {
    size_t ended = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      DrawRequest asked = request(200, 3.0, seed);
      asked.how.eos_token_ids = {end};
      const Drawn drawn = draw(asked);
      const auto at = std::find(drawn.token_ids.begin(), drawn.token_ids.end(), end);
      if (at == drawn.token_ids.end()) continue;
      ++ended;
      EXPECT_EQ(at + 1, drawn.token_ids.end());
      EXPECT_EQ(drawn.finish_reason, FinishReason::kEos);
      EXPECT_EQ(drawn.log_probs.size(), drawn.token_ids.size());
      EXPECT_LT(difference(kPrompt, drawn), kTolerance);
    }
    EXPECT_GT(ended, 0u) << end;
  }
}

TEST_F(RealLlama, EndsAtStopStrings) {
  size_t stopped = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    DrawRequest asked = request(60, 1.0, seed);
    asked.how.eos_token_ids = {kEnd, kEndOfText};
    asked.how.stop = {"e", " t"};
    const Drawn drawn = draw(asked);
    EXPECT_EQ(drawn.log_probs.size(), drawn.token_ids.size());
    EXPECT_LT(difference(kPrompt, drawn), kTolerance) << seed;
    if (drawn.finish_reason != FinishReason::kStop) continue;
    ++stopped;
    EXPECT_LT(drawn.token_ids.size(), 60u);
  }
  EXPECT_GT(stopped, 0u);
}

// All tokens after one prefix, parts of characters among them, and the most probable ones.
TEST_F(RealLlama, ScoresAreOurs) {
  std::vector<int32_t> ids(static_cast<size_t>(model_->vocab_rows()));
  std::iota(ids.begin(), ids.end(), 0);
  std::rotate(ids.begin(), ids.begin() + 120, ids.end());
  ScoreRequest asked{.token_ids = ids, .positions = {}, .top_k = 20};
  for (int32_t p = 0; p + 1 < static_cast<int32_t>(ids.size()); p += p < 70 ? 1 : 9)
    asked.positions.push_back(p);
  const Scored scored = engine_->score(asked, soon()).get();

  const auto rows = static_cast<int64_t>(asked.positions.size());
  ASSERT_EQ(scored.given.size(), asked.positions.size());
  ASSERT_EQ(scored.ids.sizes(), (at::IntArrayRef{rows, 20}));
  ASSERT_EQ(scored.log_probs.sizes(), (at::IntArrayRef{rows, 20}));
  const at::Tensor ours = model_->log_probs(ids);
  for (int64_t r = 0; r < rows; ++r) {
    const auto position = static_cast<size_t>(asked.positions[static_cast<size_t>(r)]);
    const at::Tensor row = ours[static_cast<int64_t>(position)];
    EXPECT_NEAR(scored.given[static_cast<size_t>(r)],
                model_->log_prob_after(ours, position, ids[position + 1]), kTolerance);
    const at::Tensor values = std::get<0>(at::topk(row, 20));
    const at::Tensor at_their_ids = row.index_select(0, scored.ids[r].to(at::kLong));
    EXPECT_LT((scored.log_probs[r] - values).abs().max().item().toDouble(), kTolerance);
    EXPECT_LT((scored.log_probs[r] - at_their_ids).abs().max().item().toDouble(), kTolerance);
  }
}

TEST_F(RealLlama, ManySequencesAtOnce) {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<Future<Scored>> answers;
  for (int32_t i = 0; i < 5; ++i) {
    sequences.push_back({5 + i, 100, 30 + i, 160, 401, 7, i});
    answers.push_back(
        engine_->score({.token_ids = sequences.back(), .positions = {0, 2, 3, 5}}, soon()));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    const Scored scored = answers[i].get();
    const at::Tensor ours = model_->log_probs(sequences[i]);
    EXPECT_FALSE(scored.ids.defined());
    const std::vector<size_t> positions{0, 2, 3, 5};
    ASSERT_EQ(scored.given.size(), positions.size());
    for (size_t r = 0; r < positions.size(); ++r)
      EXPECT_NEAR(scored.given[r],
                  model_->log_prob_after(ours, positions[r], sequences[i][positions[r] + 1]),
                  kTolerance);
  }
}

TEST_F(RealLlama, LongPromptsAndTooLongOnes) {
  DrawRequest asked = request(8, 0);
  asked.prompt.assign(500, 33);
  EXPECT_LT(difference(asked.prompt, draw(asked)), kTolerance);

  asked.how.max_new_tokens = 40;
  expect_error(ErrorCode::kInvalidArgument, "context is full", [&] { draw(asked); });
  asked.prompt.assign(600, 33);
  expect_error(ErrorCode::kInvalidArgument, "600 tokens", [&] { draw(asked); });
  expect_error(ErrorCode::kInvalidArgument, "(512 tokens)", [&] {
    engine_->score({.token_ids = asked.prompt, .positions = {598}}, soon()).get();
  });
}

TEST_F(RealLlama, RefusesWhatItCannotBeAsked) {
  DrawRequest asked = request(1, 1);
  asked.prompt = {3, 416};
  expect_error(ErrorCode::kInvalidArgument, "416 is none of the server's 416",
               [&] { draw(asked); });
  asked = request(1, 1);
  asked.how.sampling.num_ids = 500;
  expect_error(ErrorCode::kInvalidArgument, "num_ids", [&] { draw(asked); });
  expect_error(ErrorCode::kInvalidArgument, "positions", [&] {
    engine_->score({.token_ids = {1, 2}, .positions = {1}}, soon()).get();
  });
  expect_error(ErrorCode::kUnavailable, "has one model for its life",
               [&] { engine_->load_weights(model_->gguf(), soon()).get(); });
  ExternalOptions other = server_->options();
  other.served_model = "another";
  expect_error(ErrorCode::kMismatch, "model.gguf",
               [&] { make_engine(other, server_->url(), "")->state(soon()).get(); });
}

// Logits that overflow.
TEST_F(RealLlama, NaNIsNoLogProbability) {
  TinyModel broken;
  broken.fill("model.norm.weight", 3e38);
  const RealServer server(broken.gguf());
  const auto engine = server.engine();
  expect_error(ErrorCode::kCorrupt, "logprob", [&] { engine->draw(request(3, 1), soon()).get(); });
  EXPECT_THROW(engine->score({.token_ids = kPrompt, .positions = {3}}, soon()).get(), Error);
}

// Without a router the whole server must be started anew to open the file, which the owner of
// `command` does.
TEST_F(RealLlama, NewWeightsCountAfterARestart) {
  TinyModel other(9);
  RealServer server(other.gguf());
  const auto engine = server.engine();
  const ScoreRequest asked{.token_ids = kPrompt, .positions = {3}};
  const float before = engine->score(asked, soon()).get().given.front();
  EXPECT_NEAR(before, other.log_prob_after(other.log_probs(kPrompt), 3, kPrompt[4]), kTolerance);

  other.export_gguf(model_->folder());
  server.reload();
  EXPECT_NEAR(engine->score(asked, soon()).get().given.front(),
              model_->log_prob_after(model_->log_probs(kPrompt), 3, kPrompt[4]), kTolerance);
}

}  // namespace
}  // namespace retort::engines
