// A real vLLM beside our own forward, on the same weights. vllm_test.py starts it and this program.
//
//   RETORT_VLLM_URL    where it listens
//   RETORT_VLLM_MODEL  the model folder that it serves in float32
//   RETORT_VLLM_OTHER  a folder of other weights of the same shape
//   RETORT_VLLM_NAMED  it was started to take ids that are named for each position
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "engines/contract/engine.h"
#include "engines/make_engine.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/generate.h"
#include "models/ops/packed.h"
#include "models/safetensors/safetensors.h"
#include "tests/engines/draw_statistics.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 1e-4;  // nats
constexpr int64_t kNumIds = 400;     // of the tokenizer; the model has more rows

Deadline soon() { return Deadline::after(std::chrono::minutes(8)); }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// [tokens, V] fp32: row p is the distribution after token p.
at::Tensor ours(const models::Decoder& decoder, const std::vector<int32_t>& ids) {
  return at::log_softmax(decoder.logits(decoder.hidden(models::pack_rows({ids}))), -1);
}
models::Decoder load(const fs::path& folder) { return models::load_decoder(folder, at::kFloat); }

// 60 ids in no order.
std::vector<int32_t> a_text() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 60; ++i)
    ids.push_back((i * i * 37 + 11 * i + 5) % static_cast<int32_t>(kNumIds));
  return ids;
}
std::vector<std::vector<int32_t>> prompts() {
  return {{10, 21, 32}, {7}, {300, 301, 302, 303, 304, 305, 306, 307}, {2, 2, 55}};
}

class VllmLive : public retort::test::FolderTest {
 protected:
  VllmLive() : engine_(make_engine({}, variable("RETORT_VLLM_URL"), "")) {}

  Drawn draw(const DrawRequest& request) { return engine_->draw(request, soon()).get(); }
  static DrawRequest request(const std::vector<int32_t>& prompt) {
    DrawRequest request{.prompt = prompt, .seed = 1};
    request.how = {.sampling = {.num_ids = kNumIds}, .max_new_tokens = 16};
    return request;
  }

  // The largest difference of log-probabilities, and in how many.
  struct Difference {
    double largest = 0;
    int64_t count = 0;
    void add(double a, double b) {
      largest = std::max(largest, std::abs(a - b));
      ++count;
    }
  };
  static void say(const std::string& what, const Difference& difference) {
    std::cout << what << ": " << difference.count << " log-probabilities within "
              << difference.largest << std::endl;
    EXPECT_GT(difference.count, 0);
    EXPECT_LT(difference.largest, kTolerance) << what;
  }
  static void add_drawn(const models::Decoder& decoder, const DrawRequest& request,
                        const Drawn& drawn, Difference& difference) {
    std::vector<int32_t> ids = request.prompt;
    ids.insert(ids.end(), drawn.token_ids.begin(), drawn.token_ids.end());
    const at::Tensor log_probs = ours(decoder, ids);
    for (size_t i = 0; i < drawn.token_ids.size(); ++i) {
      const auto row = static_cast<int64_t>(request.prompt.size() + i) - 1;
      difference.add(drawn.log_probs[i], log_probs[row][drawn.token_ids[i]].item<double>());
    }
  }

  // 256 draws of 24 tokens each, all at once, beside our own distributions.
  test::DrawStatistics statistics(const models::SamplingOptions& sampling) {
    std::vector<DrawRequest> requests;
    std::vector<Future<Drawn>> together;
    for (uint64_t seed = 0; seed < 256; ++seed) {
      DrawRequest asked = request(prompts()[seed % 4]);
      asked.how.sampling = sampling;
      asked.how.max_new_tokens = 24;
      asked.seed = 1000 + seed;
      requests.push_back(asked);
      together.push_back(engine_->draw(asked, soon()));
    }

    // Without the rows that are barred when drawing.
    test::DrawStatistics statistics;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Drawn drawn = together[i].get();
      std::vector<int32_t> ids = requests[i].prompt;
      ids.insert(ids.end(), drawn.token_ids.begin(), drawn.token_ids.end());
      const at::Tensor rows = ours(decoder_, ids)
                                  .slice(0, static_cast<int64_t>(requests[i].prompt.size()) - 1, -1)
                                  .slice(1, 0, kNumIds);
      statistics.add(at::log_softmax(rows, -1), drawn.token_ids);
    }
    std::cout << "drawn at temperature " << sampling.temperature << ", top_p " << sampling.top_p
              << ": " << statistics.num_tokens() << " tokens, z of -log p " << statistics.surprise()
              << ", chi2/df of ranks " << statistics.rank_error() << std::endl;
    return statistics;
  }

  // `folder` with the head that vLLM needs, where it is tied.
  std::string with_head(const fs::path& folder, const std::string& name) {
    const models::SafetensorsReader reader(folder);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const std::string& tensor : reader.names())
      tensors.emplace_back(tensor, reader.get(tensor));
    if (!reader.contains("lm_head.weight"))
      tensors.emplace_back("lm_head.weight", reader.get("model.embed_tokens.weight"));
    fs::create_directories(folder_ / name);
    fs::copy_file(folder / "config.json", folder_ / name / "config.json");
    models::write_safetensors(folder_ / name / "model.safetensors", tensors);
    return (folder_ / name).string();
  }

  const fs::path model_ = variable("RETORT_VLLM_MODEL");
  const fs::path other_ = variable("RETORT_VLLM_OTHER");
  const models::Decoder decoder_ = load(model_);
  const std::unique_ptr<Engine> engine_;
};

TEST_F(VllmLive, SaysWhatItServes) {
  const EngineState state = engine_->state(soon()).get();
  std::cout << "vLLM " << state.version << ", " << state.vocab_rows << " rows, "
            << state.context_tokens << " tokens, top_k up to " << engine_->abilities().max_top_k
            << std::endl;
  EXPECT_EQ(state.vocab_rows, decoder_.config().vocab_size);
  EXPECT_GT(state.context_tokens, 0);
}

TEST_F(VllmLive, DrawsGreedilyAsWeDo) {
  for (const double penalty : {1.0, 1.3}) {
    Difference difference;
    models::GenerateOptions options;
    options.draw = request({}).how;
    options.draw.sampling.temperature = 0;
    options.draw.sampling.repetition_penalty = penalty;
    const auto expected = models::generate(decoder_, prompts(), options);
    for (size_t i = 0; i < expected.size(); ++i) {
      DrawRequest asked = request(prompts()[i]);
      asked.how = options.draw;
      const Drawn drawn = draw(asked);
      EXPECT_EQ(drawn.token_ids, expected[i].token_ids);
      add_drawn(decoder_, asked, drawn, difference);
    }
    say("greedy, repetition_penalty " + std::to_string(penalty), difference);
  }
}

// A truncation that leaves one candidate draws it at every temperature.
TEST_F(VllmLive, CutsAsWeDo) {
  DrawRequest asked = request(prompts()[0]);
  asked.how.sampling.temperature = 0;
  const Drawn greedy = draw(asked);
  const models::SamplingOptions cuts[] = {{.top_k = 1, .num_ids = kNumIds},
                                          {.top_p = 1e-6, .num_ids = kNumIds},
                                          {.min_p = 1, .num_ids = kNumIds}};
  for (const models::SamplingOptions& cut : cuts) {
    asked.how.sampling = cut;
    EXPECT_EQ(draw(asked).token_ids, greedy.token_ids);
  }
}

TEST_F(VllmLive, DrawsWhatItSays) {
  Difference difference;
  std::vector<DrawRequest> requests;
  std::vector<Future<Drawn>> together;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    DrawRequest asked = request(prompts()[seed % 4]);
    asked.how.max_new_tokens = 24;
    asked.how.sampling.temperature = seed < 12 ? 1.0 : 1.5;
    asked.seed = seed;
    requests.push_back(asked);
    together.push_back(engine_->draw(asked, soon()));
  }

  // Whatever was drawn beside them, the same seeds draw the same tokens again.
  for (size_t i = 0; i < requests.size(); ++i) {
    const Drawn drawn = together[i].get();
    EXPECT_EQ(drawn.token_ids.size(), 24u);
    add_drawn(decoder_, requests[i], drawn, difference);
    if (i % 4 != 0) continue;
    EXPECT_EQ(draw(requests[i]).token_ids, drawn.token_ids) << i;
  }
  say("drawn, 24 at a time", difference);
}

TEST_F(VllmLive, DrawsFromOurDistribution) {
  const auto drawn = statistics({.num_ids = kNumIds});
  EXPECT_EQ(drawn.num_tokens(), 256 * 24);
  EXPECT_LT(std::abs(drawn.surprise()), 4);
  EXPECT_LT(drawn.rank_error(), 2);

  // Which small changes this tells.
  EXPECT_GT(statistics({.temperature = 1.1, .num_ids = kNumIds}).surprise(), 4);
  EXPECT_LT(statistics({.top_p = 0.95, .num_ids = kNumIds}).surprise(), -4);
}

TEST_F(VllmLive, EndsWhereWeWould) {
  DrawRequest asked = request(prompts()[2]);
  const Drawn whole = draw(asked);
  EXPECT_EQ(whole.finish_reason, models::FinishReason::kLength);
  const int32_t end = whole.token_ids[3];
  const auto first = std::find(whole.token_ids.begin(), whole.token_ids.end(), end);
  asked.how.eos_token_ids = {end};
  const Drawn ended = draw(asked);
  EXPECT_EQ(ended.finish_reason, models::FinishReason::kEos);
  EXPECT_EQ(ended.token_ids, std::vector<int32_t>(whole.token_ids.begin(), first + 1));

  // The model's own end token is none unless the request says so.
  const int32_t own = 2;
  asked = request({5, 6});
  asked.how.sampling.temperature = 2;  // as much as vLLM takes
  asked.how.max_new_tokens = 110;
  bool seen = false;
  for (asked.seed = 0; asked.seed < 20 && !seen; ++asked.seed) {
    const Drawn drawn = draw(asked);
    EXPECT_EQ(drawn.token_ids.size(), 110u);
    const auto at = std::find(drawn.token_ids.begin(), drawn.token_ids.end() - 1, own);
    seen = at != drawn.token_ids.end() - 1;
    EXPECT_LT(*std::max_element(drawn.token_ids.begin(), drawn.token_ids.end()), kNumIds);
  }
  EXPECT_TRUE(seen) << "no draw had the end token, so nothing was tried";
}

TEST_F(VllmLive, ScoresAsWeDo) {
  const std::vector<int32_t> ids = a_text();
  const at::Tensor log_probs = ours(decoder_, ids);
  ScoreRequest asked{.token_ids = ids};
  for (int32_t p = 0; p < 59; ++p)
    asked.positions.push_back(p);

  for (const int64_t top_k : {0, 1, 5, 24}) {
    asked.top_k = top_k;
    const Scored scored = engine_->score(asked, soon()).get();
    Difference given, top;
    for (int64_t p = 0; p < 59; ++p) {
      const int32_t token = ids[static_cast<size_t>(p) + 1];
      given.add(scored.given[static_cast<size_t>(p)], log_probs[p][token].item<double>());
      if (top_k == 0) continue;
      const at::Tensor best = std::get<0>(log_probs[p].topk(top_k));
      for (int64_t k = 0; k < top_k; ++k) {
        const double value = scored.log_probs[p][k].item<double>();
        top.add(value, log_probs[p][scored.ids[p][k].item<int64_t>()].item<double>());
        top.add(value, best[k].item<double>());
      }
    }
    say("given, top_k " + std::to_string(top_k), given);
    if (top_k > 0) say("most probable, top_k " + std::to_string(top_k), top);
  }
  asked.top_k = engine_->abilities().max_top_k + 1;
  retort::test::expect_error(ErrorCode::kInvalidArgument, "--max-logprobs",
                             [&] { engine_->score(asked, soon()).get(); });
}

// Ids of any probability, in no order, twice as well, of positions with gaps among them; asked
// again when the server has the prompt in its prefix cache.
TEST_F(VllmLive, ScoresNamedIds) {
  if (variable("RETORT_VLLM_NAMED").empty()) GTEST_SKIP() << "vllm_test.py starts one that does";
  const std::vector<int32_t> ids = a_text();
  const at::Tensor log_probs = ours(decoder_, ids);
  for (const int64_t width : {1, 5, 64}) {
    Difference difference;
    ScoreRequest asked{.token_ids = ids};
    for (int32_t p = 3; p < 59; p += p % 7 == 0 ? 4 : 1)
      asked.positions.push_back(p);
    const auto num_rows = static_cast<int64_t>(asked.positions.size());
    const at::Tensor named = at::randint(decoder_.config().vocab_size, {num_rows, width}, at::kInt);
    for (int round = 0; round < 2; ++round) {
      const at::Tensor numbers = engine_->log_probs_at(asked, named, soon()).get();
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t position = asked.positions[static_cast<size_t>(row)];
        const at::Tensor expected = log_probs[position].gather(0, named[row].to(at::kLong));
        for (int64_t k = 0; k < width; ++k)
          difference.add(numbers[row][k].item<double>(), expected[k].item<double>());
      }
    }
    say("named, " + std::to_string(width) + " of each position", difference);
  }
}

TEST_F(VllmLive, FollowsWeights) {
  const std::vector<int32_t> ids = a_text();
  const ScoreRequest asked{.token_ids = ids, .positions = {3, 30, 58}, .top_k = 5};
  const auto compare = [&](const models::Decoder& decoder, const std::string& what) {
    Difference difference;
    const Scored scored = engine_->score(asked, soon()).get();
    const at::Tensor log_probs = ours(decoder, ids);
    for (int64_t r = 0; r < 3; ++r) {
      const int32_t p = asked.positions[static_cast<size_t>(r)];
      difference.add(scored.given[static_cast<size_t>(r)],
                     log_probs[p][ids[static_cast<size_t>(p) + 1]].item<double>());
      for (int64_t k = 0; k < 5; ++k)
        difference.add(scored.log_probs[r][k].item<double>(),
                       log_probs[p][scored.ids[r][k].item<int64_t>()].item<double>());
    }
    // The prompt is long enough to stand in the prefix cache, of the weights before.
    DrawRequest drawing = request(ids);
    add_drawn(decoder, drawing, draw(drawing), difference);
    say(what, difference);
  };

  compare(decoder_, "before");
  engine_->load_weights(with_head(other_, "other"), soon()).get();
  compare(load(other_), "other weights");
  engine_->load_weights(with_head(model_, "back"), soon()).get();
  compare(decoder_, "and back");

  // A request that would end the server is not sent to it.
  EXPECT_TRUE(retort::test::thrown([&] { engine_->load_weights("/nowhere", soon()).get(); }));
  if (decoder_.config().tie_word_embeddings)
    retort::test::expect_error(ErrorCode::kMismatch, "tied head",
                               [&] { engine_->load_weights(other_.string(), soon()).get(); });
  compare(decoder_, "after folders that were refused");
}

}  // namespace
}  // namespace retort::engines
