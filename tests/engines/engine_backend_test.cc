// A generator whose samples an engine draws: it follows the student, or says that it does not.
#include "engines/served/backend.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"
#include "engines/contract/options.h"
#include "models/safetensors/safetensors.h"
#include "tests/engines/held_engine.h"
#include "tests/engines/model_engine.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/sealed_weights.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::code_of;
using test::error_of;

class EngineBackendTest : public test::FolderTest {
 protected:
  EngineBackend::Options options() {
    return {.timeout = 100s,
            .canaries = {.tokens = 64, .tolerance = 1e-4},
            .drawn = drawn_meaning,
            .on_receipt = [this](const Receipt& receipt) { receipts.push_back(receipt); }};
  }
  std::unique_ptr<EngineBackend> make(std::shared_ptr<Engine> with) {
    return std::make_unique<EngineBackend>(
        std::move(with), roles::golden_decoder(), models::Tokenizer::load(roles::golden_model()),
        WeightFiles({.via = WeightRoute::kFolder, .folder = folder_ / "weights"}, "model",
                    roles::golden_model()),
        options());
  }
  // Staged, checked and in use.
  void push(EngineBackend& backend, const models::Decoder& weights, uint64_t version) {
    roles::Sealed all = roles::sealed(weights, version, 4096);
    for (roles::WeightBucket& bucket : all.buckets)
      backend.stage(std::move(bucket), "student/0");
    EXPECT_EQ(backend.check(all.commit), roles::weights_checksum(all.commit.receipts));
    backend.apply();
  }
  std::vector<roles::FinishedSample> drawn(EngineBackend& backend, size_t count) {
    std::vector<roles::FinishedSample> all;
    while (all.size() < count && backend.step())
      for (roles::FinishedSample& sample : backend.finished())
        all.push_back(std::move(sample));
    return all;
  }
  static roles::GenerateRequest request(uint64_t version) {
    roles::GenerateRequest one = roles::generate_request(1, version, {{1, 2, 3}, {9, 8}});
    one.draw.sampling = {.seed = 5};
    return one;
  }

  std::shared_ptr<ModelEngine> engine = std::make_shared<ModelEngine>(roles::golden_decoder());
  DrawnMeaning drawn_meaning = DrawnMeaning::kRaw;
  std::vector<Receipt> receipts;
};

TEST_F(EngineBackendTest, DrawsEachCompletionOnce) {
  const auto backend = make(engine);
  const uint64_t number = backend->submit(request(0));
  const auto samples = drawn(*backend, 4);
  ASSERT_EQ(samples.size(), 4u);
  std::set<int64_t> indices;
  for (const auto& sample : samples) {
    EXPECT_EQ(sample.request, number);
    indices.insert(sample.index);
    EXPECT_FALSE(sample.completion.token_ids.empty());
    EXPECT_EQ(sample.completion.logps, sample.completion.sampling_logps);
  }
  EXPECT_EQ(indices, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_FALSE(backend->step()) << "nothing is open";
}

// A completion has two kinds of log-probabilities, and which of them are known follows from what
// the engine's numbers mean.
TEST_F(EngineBackendTest, ACompletionHasTheLogProbabilitiesThatAreKnown) {
  const models::SamplingOptions warm{.temperature = 2, .seed = 5};
  const models::SamplingOptions cut{.top_p = 0.9, .seed = 5};
  const models::SamplingOptions greedy{.temperature = 0};
  const struct {
    models::SamplingOptions how;
    DrawnMeaning meaning;
    bool of_model, of_draw;
  } cases[] = {
      {warm, DrawnMeaning::kRaw, true, false},      {cut, DrawnMeaning::kRaw, true, false},
      {warm, DrawnMeaning::kTempered, false, true}, {cut, DrawnMeaning::kTempered, false, false},
      {cut, DrawnMeaning::kProcessed, false, true}, {cut, DrawnMeaning::kUnknown, false, false},
      {greedy, DrawnMeaning::kRaw, true, true},
  };
  for (const auto& [how, meaning, of_model, of_draw] : cases) {
    drawn_meaning = meaning;
    const auto backend = make(engine);
    roles::GenerateRequest asked = request(0);
    asked.draw.sampling = how;
    backend->submit(asked);
    for (const auto& sample : drawn(*backend, 4)) {
      const models::Completion& one = sample.completion;
      EXPECT_EQ(one.logps.size(), of_model ? one.token_ids.size() : 0);
      EXPECT_EQ(one.sampling_logps.size(), of_draw ? one.token_ids.size() : 0);
    }
  }
}

TEST_F(EngineBackendTest, SeedsAreOfTheSample) {
  const auto backend = make(engine);
  backend->submit(request(0));
  const auto first = drawn(*backend, 4);
  backend->submit(request(0));
  const auto again = drawn(*backend, 4);
  ASSERT_EQ(first.size(), again.size());
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_EQ(first[i].completion.token_ids, again[i].completion.token_ids);
  EXPECT_NE(first[0].completion.token_ids, first[1].completion.token_ids)
      << "two samples of one prompt";
}

// An engine counts its positions as it likes, so a sample that goes on has another seed, which
// depends on where it does.
TEST_F(EngineBackendTest, SeedsOfASampleThatGoesOnAreItsOwn) {
  const auto backend = make(engine);
  const auto tokens_at = [&](int64_t continues) {
    roles::GenerateRequest asked = request(0);
    asked.continues = continues;
    backend->submit(asked);
    std::map<int64_t, std::vector<int32_t>> tokens;
    for (auto& sample : drawn(*backend, 4))
      tokens[sample.index] = std::move(sample.completion.token_ids);
    return tokens;
  };
  const auto whole = tokens_at(0);
  EXPECT_EQ(tokens_at(0), whole);
  EXPECT_EQ(tokens_at(2), tokens_at(2));
  EXPECT_NE(tokens_at(1), whole);
  EXPECT_NE(tokens_at(2), tokens_at(1));

  // Those of whole completions are what they were before samples went on.
  models::GenerationRequest direct{.prompts = {{1, 2, 3}}, .draw = request(0).draw};
  direct.draw.sampling.seed = random_bits(5, 100);
  EXPECT_EQ(
      whole.at(0),
      models::Engine(roles::golden_decoder(), {.num_blocks = 64}).run(direct).at(0).token_ids);
}

TEST_F(EngineBackendTest, DrawThatBreaksIsDrawnOnceMore) {
  const auto backend = make(engine);
  engine->before_draw = [&] {
    if (engine->draws == 1) throw Error(ErrorCode::kUnavailable, "connection reset");
  };
  backend->submit(request(0));
  EXPECT_EQ(drawn(*backend, 4).size(), 4u);
  EXPECT_EQ(engine->draws, 5);
}

// A timeout is that of one draw: others stand before it.
TEST_F(EngineBackendTest, DrawsBeforeItDoNotTakeItsTime) {
  const auto held = std::make_shared<HeldEngine>();
  const auto backend = make(held);
  backend->submit(request(0));
  ASSERT_EQ(held->deadlines.size(), 4u);
  EXPECT_LT(held->deadlines[0].remaining(), 101s);
  EXPECT_GT(held->deadlines[3].remaining(), 350s);
}

TEST_F(EngineBackendTest, LostEngineEndsTheBackend) {
  const auto backend = make(engine);
  engine->before_draw = [] { throw Error(ErrorCode::kUnavailable, "connection refused"); };
  backend->submit(request(0));
  EXPECT_EQ(code_of([&] { drawn(*backend, 4); }), ErrorCode::kUnavailable);
}

TEST_F(EngineBackendTest, AnswerThatCannotBeEndsItsRequestAlone) {
  const auto backend = make(engine);
  engine->before_draw = [&] {
    if (engine->draws == 2) throw Error(ErrorCode::kCorrupt, "a log-probability above 0");
  };
  backend->submit(request(0));
  std::vector<roles::FinishedSample> samples;
  while (backend->step())
    for (auto& sample : backend->finished())
      samples.push_back(std::move(sample));
  ASSERT_EQ(samples.size(), 1u) << "nothing else of the request";
  EXPECT_EQ(code_of([&] { std::rethrow_exception(samples[0].error); }), ErrorCode::kCorrupt);

  engine->before_draw = nullptr;
  backend->submit(request(0));
  EXPECT_EQ(drawn(*backend, 4).size(), 4u);
}

TEST_F(EngineBackendTest, ScoresUnderTheWeightsInUse) {
  const auto backend = make(engine);
  roles::ForwardRequest asked;
  asked.input_ids = at::tensor({1, 2, 3, 4, 5, 6}, at::kInt);
  asked.cu_seqlens = at::tensor({0, 4, 5, 6}, at::kInt);
  const auto scores = backend->score(asked);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0].size(), 3u);
  EXPECT_TRUE(scores[1].empty());
}

TEST_F(EngineBackendTest, FollowsTheStudentWithAReceiptForEachVersion) {
  const auto backend = make(engine);
  for (uint64_t version = 1; version <= 3; ++version) {
    const models::Decoder student = roles::other_decoder(version);
    push(*backend, student, version);
    EXPECT_EQ(backend->weight_version(), version);
    EXPECT_TRUE(roles::equal_weights(engine->decoder, student));
  }
  ASSERT_EQ(receipts.size(), 3u);
  for (const Receipt& receipt : receipts) {
    EXPECT_TRUE(receipt.accepted());
    EXPECT_GT(receipt.tokens, 64);
    EXPECT_LT(receipt.largest, 1e-5);
  }
}

TEST_F(EngineBackendTest, EngineThatKeepsItsWeightsIsFound) {
  const auto backend = make(engine);
  engine->after_load = [](models::Decoder& loaded) { loaded = roles::golden_decoder(); };
  const Error error = error_of([&] { push(*backend, roles::other_decoder(1), 1); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_NE(error.message().find("not what the student computes"), std::string::npos);
  ASSERT_EQ(receipts.size(), 1u);
  EXPECT_FALSE(receipts[0].accepted());
}

// Rounding moves single numbers far and all of them little; other weights move all.
TEST_F(EngineBackendTest, EngineWhoseNumbersAllDifferALittleIsFound) {
  ModelEngine shifted(roles::golden_decoder());
  shifted.lie = [](Scored& scored) {
    for (float& given : scored.given)
      given -= 0.02F;
    scored.log_probs.sub_(0.02);
  };
  const auto receipt = [&](double mean_tolerance) {
    return check_weights(shifted, shifted.decoder, 1,
                         {.tokens = 64, .tolerance = 0.2, .mean_tolerance = mean_tolerance},
                         Deadline::after(30s));
  };
  EXPECT_TRUE(receipt(0.03).accepted());
  EXPECT_FALSE(receipt(0.01).accepted()) << receipt(0.01).mean;
}

// A later process has another version 1 than the one before it, while a cache of the server still
// knows the answers to all that was asked. So canaries must differ from process to process.
TEST_F(EngineBackendTest, CanariesAreOfOneProcess) {
  const auto asked = [&](uint64_t nonce) {
    struct Listens final : ModelEngine {
      using ModelEngine::ModelEngine;
      Future<Scored> score(ScoreRequest request, Deadline deadline) override {
        heard.push_back(request.token_ids);
        return ModelEngine::score(std::move(request), deadline);
      }
      std::vector<std::vector<int32_t>> heard;
    } listens(roles::golden_decoder());
    EXPECT_TRUE(check_weights(listens, listens.decoder, 1, {.tokens = 64, .nonce = nonce},
                              Deadline::after(30s))
                    .accepted());
    return listens.heard;
  };
  EXPECT_EQ(asked(7), asked(7));
  EXPECT_NE(asked(7), asked(8));
}

TEST_F(EngineBackendTest, IdThatIsNoneOfTheStudentsIsFound) {
  const auto backend = make(engine);
  engine->lie = [](Scored& scored) { scored.ids.fill_(1'000'000'000); };
  EXPECT_NE(error_of([&] { push(*backend, roles::other_decoder(1), 1); })
                .message()
                .find("another vocabulary"),
            std::string::npos);
}

// Each tensor of the checkpoint in turn; a change that moves no log-probability by more than the
// tolerance is none.
TEST_F(EngineBackendTest, EveryTensorThatIsNotTheStudentsIsFound) {
  const models::Decoder student = roles::other_decoder(1);
  const size_t count = student.parameters().size();
  ASSERT_GT(count, 10u);
  for (size_t i = 0; i < count; ++i) {
    const auto backend = make(engine);
    std::string name;
    engine->after_load = [&](models::Decoder& loaded) {
      const auto parameter = loaded.parameters().at(i);
      name = parameter.name;
      const c10::InferenceMode off(false);
      // not the same for all numbers, which a norm behind the tensor would take out again
      const at::Tensor values = parameter.value.detach();
      values.mul_(at::randn_like(values) * 0.1 + 1);
    };
    EXPECT_EQ(code_of([&] { push(*backend, student, 1); }), ErrorCode::kMismatch) << name;
  }
}

TEST_F(EngineBackendTest, NumbersThatAreNoneAreFound) {
  const auto backend = make(engine);
  engine->lie = [](Scored& scored) { scored.given[0] = std::nanf(""); };
  EXPECT_EQ(code_of([&] { push(*backend, roles::other_decoder(1), 1); }), ErrorCode::kMismatch);
}

TEST_F(EngineBackendTest, OnlyTheLastTwoVersionsStayOnTheDisk) {
  const auto backend = make(engine);
  for (uint64_t version = 1; version <= 4; ++version)
    push(*backend, roles::other_decoder(version), version);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_ / "weights"))
    left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"version-3", "version-4"}));
}

// A process that was killed while it wrote leaves a folder that no later version has.
TEST_F(EngineBackendTest, LeftoversOfAKilledProcessGo) {
  fs::create_directories(folder_ / "weights/version-7");
  fs::create_directories(folder_ / "weights/version-8.tmp-1");
  WeightFiles files({.via = WeightRoute::kGguf, .folder = folder_ / "weights"}, "model",
                    roles::golden_model());
  try {
    files.write(roles::golden_decoder(), 1);
  } catch (const Error&) {  // GGUF knows no tokenizer of this kind
  }
  for (const auto& entry : fs::directory_iterator(folder_ / "weights"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("version-")) << entry.path();
}

// vLLM's reload leaves the packed copy of a tied head as it was unless a tensor names it.
TEST_F(EngineBackendTest, TiedHeadStandsInTheFolderByName) {
  models::ModelConfig config = roles::golden_decoder().config();
  config.tie_word_embeddings = true;
  const models::Decoder tied = models::Decoder::random(config, 3, at::kFloat);
  WeightFiles files({.via = WeightRoute::kFolder, .folder = folder_ / "tied"}, "model",
                    roles::golden_model());
  const models::SafetensorsReader reader(files.write(tied, 1));
  EXPECT_TRUE(at::equal(reader.get("lm_head.weight"), reader.get("model.embed_tokens.weight")));
}

}  // namespace
}  // namespace retort::engines
