// The adapter and the real Triton, beside our own forward of the same checkpoint.
// RETORT_TRITON_PYTHON: a Python with Triton's wheel; `./dev test -L engines` sets it.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/score.h"
#include "models/ops/packed.h"
#include "roles/payload/payload.h"
#include "tests/http/requests.h"
#include "tests/models/small_model.h"
#include "tests/support/process.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace retort::engines {
namespace {

using models::Decoder;
using test::soon;
namespace fs = std::filesystem;

constexpr double kTolerance = 1e-5;

Decoder random_decoder(models::Family family, uint64_t seed) {
  models::ModelConfig config = models::small_config();
  config.family = family;
  config.attention_bias = family == models::Family::kQwen2;
  config.tie_word_embeddings = family != models::Family::kQwen2;
  return Decoder::random(config, seed, at::kFloat);
}

// Its folder, below `parent`.
fs::path saved(const Decoder& decoder, const fs::path& parent, const std::string& name) {
  const fs::path folder = parent / name;
  fs::create_directories(folder);
  models::save_decoder(decoder, at::kFloat, folder, folder);
  return folder;
}

// One server for all tests; it takes two seconds to start.
class Triton : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* python = std::getenv("RETORT_TRITON_PYTHON");
    if (python == nullptr) return;
    folder_ = std::make_unique<test::TemporaryFolder>();
    decoder_ = std::make_unique<Decoder>(random_decoder(models::Family::kQwen2, 1));
    const fs::path checkpoint = saved(*decoder_, folder_->path(), "first");
    const fs::path script = test::source_folder() / "tests/engines/triton_server.py";
    server_ = std::make_unique<test::ChildProcess>(test::ChildProcess::spawn(
        {.args = {script.string(), checkpoint.string()}, .program = python}));
    address_ = server_->read_line(Deadline::after(std::chrono::minutes(4)));
  }
  static void TearDownTestSuite() {
    if (!server_) return;
    server_->close_stdin();
    EXPECT_EQ(server_->wait(Deadline::after(std::chrono::minutes(2))), 0);
    server_.reset();
    decoder_.reset();
    folder_.reset();
  }
  void SetUp() override {
    if (!server_) GTEST_SKIP() << "RETORT_TRITON_PYTHON is not set; ./dev test -L engines sets it";
  }

  static std::unique_ptr<Engine> engine(const std::string& model,
                                        std::map<std::string, std::string> tensors = {}) {
    ExternalOptions options{.engine = EngineKind::kKserve, .served_model = model};
    options.tensors = std::move(tensors);
    options.weights.via = WeightRoute::kRepository;
    return make_engine(options, address_, "");
  }
  static std::unique_ptr<Engine> ready() {
    auto small = engine("small");
    small->state(soon()).get();
    return small;
  }

  static void post(const std::string& path) {
    http::Client client;
    test::ask(client, test::post_to(address_ + path));
  }

  // top-k, given log-probabilities and hidden states of `small` are those of `decoder`.
  static void expect_like(const Decoder& decoder, Engine& small, size_t num_tokens, int64_t k);

  inline static std::unique_ptr<test::TemporaryFolder> folder_;
  inline static std::unique_ptr<Decoder> decoder_;
  inline static std::unique_ptr<test::ChildProcess> server_;
  inline static std::string address_;
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// Every second position.
ScoreRequest some_request(size_t num_tokens, int64_t k) {
  ScoreRequest request{.token_ids = models::some_tokens(num_tokens, 5), .top_k = k};
  for (size_t p = 0; p + 1 < num_tokens; p += 2)
    request.positions.push_back(static_cast<int32_t>(p));
  return request;
}

void Triton::expect_like(const Decoder& decoder, Engine& small, size_t num_tokens, int64_t k) {
  const ScoreRequest request = some_request(num_tokens, k);
  const auto rows = static_cast<int64_t>(request.positions.size());
  at::NoGradGuard no_grad;
  const at::Tensor positions = at::arange(0, 2 * rows, 2);
  const at::Tensor hidden =
      decoder.hidden(models::pack_rows({request.token_ids})).index_select(0, positions);
  const auto payload = [&](roles::PayloadKind kind) {
    return roles::make_payload(hidden, decoder.head_weight(), {.kind = kind, .top_k = k}).logps;
  };
  const auto given =
      models::score(decoder, {.sequences = {request.token_ids}, .prompt_lengths = {1}})[0];

  const Scored scored = small.score(request, soon()).get();
  ASSERT_EQ(scored.ids.sizes(), (at::IntArrayRef{rows, k}));
  // Ids of tokens that are as probable may stand in another order.
  const at::Tensor best = payload(roles::PayloadKind::kTopK);
  const at::Tensor of_ids = payload(roles::PayloadKind::kFull).gather(1, scored.ids.to(at::kLong));
  const double of_top_k = std::max(largest_difference(scored.log_probs, best),
                                   largest_difference(scored.log_probs, of_ids));
  EXPECT_LT(of_top_k, kTolerance);

  ASSERT_EQ(scored.given.size(), static_cast<size_t>(rows));
  double of_given = 0;
  for (size_t i = 0; i < scored.given.size(); ++i)
    of_given = std::max(of_given, std::abs(double{scored.given[i]} - double{given[2 * i]}));
  EXPECT_LT(of_given, kTolerance);

  ScoreRequest of_states = request;
  of_states.top_k = 0;
  const at::Tensor states = small.hidden_states(of_states, soon()).get();
  const double of_hidden = largest_difference(states, hidden);
  EXPECT_LT(of_hidden, kTolerance);
  std::cout << num_tokens << " tokens: top-k " << of_top_k << ", given " << of_given
            << ", hidden states " << of_hidden << "\n";
}

TEST_F(Triton, SaysWhatItIs) {
  const auto small = engine("small");
  EXPECT_FALSE(small->abilities().scores) << "nobody asked it yet";
  const EngineState state = small->state(soon()).get();
  EXPECT_EQ(state.version, "triton 2.51.0");
  EXPECT_EQ(state.served_model, "small");
  EXPECT_EQ(state.vocab_rows, 300);
  EXPECT_EQ(state.context_tokens, 256);

  const Abilities can = small->abilities();
  EXPECT_TRUE(can.scores && can.hidden_states && can.rewards);
  EXPECT_FALSE(can.draws || can.seeds);
  EXPECT_EQ(can.max_top_k, 64);
}

TEST_F(Triton, ComputesWhatWeDo) {
  const auto small = ready();
  expect_like(*decoder_, *small, 2, 1);
  expect_like(*decoder_, *small, 33, 7);
  expect_like(*decoder_, *small, 128, 64);
}

TEST_F(Triton, AnswersManyAtOnce) {
  const auto small = ready();
  std::vector<Future<Scored>> answers;
  for (size_t i = 0; i < 40; ++i)
    answers.push_back(small->score(some_request(2 + i, 3), soon()));
  for (size_t i = 0; i < answers.size(); ++i) {
    const Scored alone = small->score(some_request(2 + i, 3), soon()).get();
    EXPECT_TRUE(answers[i].get().ids.equal(alone.ids)) << i;
  }
}

// The model's score: the mean log-probability of the completion.
TEST_F(Triton, GivesRewards) {
  const std::vector<int32_t> ids = models::some_tokens(20, 9);
  const auto ours = models::score(*decoder_, {.sequences = {ids}, .prompt_lengths = {8}})[0];
  double mean = 0;
  for (const float log_prob : ours)
    mean += double{log_prob} / static_cast<double>(ours.size());
  const RewardRequest request{{ids.begin(), ids.begin() + 8}, {ids.begin() + 8, ids.end()}};
  EXPECT_NEAR(ready()->reward(request, soon()).get(), mean, kTolerance);
}

TEST_F(Triton, FollowsWeights) {
  const auto small = ready();
  const Scored before = small->score(some_request(9, 4), soon()).get();

  // One number of one matrix is enough; then a model of another family, and back.
  Decoder changed = models::load_decoder(folder_->path() / "first", at::kFloat);
  for (const auto& parameter : changed.parameters())
    if (parameter.name == "model.layers.0.mlp.down_proj.weight") parameter.value[3][5] += 0.5;
  const fs::path folder = saved(changed, folder_->path(), "second");
  small->load_weights(folder.string(), soon()).get();
  expect_like(changed, *small, 33, 7);
  const Scored after = small->score(some_request(9, 4), soon()).get();
  EXPECT_GT(largest_difference(after.log_probs, before.log_probs), kTolerance);

  const Decoder other = random_decoder(models::Family::kQwen3, 2);
  small->load_weights(saved(other, folder_->path(), "third").string(), soon()).get();
  expect_like(other, *small, 33, 7);

  // The same folder with other weights.
  saved(changed, folder_->path(), "third");
  small->load_weights((folder_->path() / "third").string(), soon()).get();
  expect_like(changed, *small, 33, 7);

  const Error missing = test::error_of(
      [&] { small->load_weights((folder_->path() / "nowhere").string(), soon()).get(); });
  EXPECT_NE(std::string(missing.what()).find("nowhere"), std::string::npos) << missing.what();
  test::expect_error(ErrorCode::kUnavailable, "is not ready", [&] { small->state(soon()).get(); });
  small->load_weights((folder_->path() / "first").string(), soon()).get();
  expect_like(*decoder_, *small, 33, 7);
}

TEST_F(Triton, RefusesWhatItCannotDo) {
  test::expect_error(ErrorCode::kMismatch, R"(no model "zzz"; it has "faulty", "lengths", "small")",
                     [] { engine("zzz")->state(soon()).get(); });
  test::expect_refused(R"(the server has "faulty", "lengths", "small")",
                       [] { engine("")->state(soon()).get(); });
  test::expect_error(ErrorCode::kMismatch, "datatype", [] {
    engine("small", {{"given_logprobs", "topk_ids"}})->state(soon()).get();
  });
  test::expect_error(ErrorCode::kMismatch, "no input input_ids; it has tokens",
                     [] { engine("faulty")->state(soon()).get(); });
  test::expect_refused("cannot draw", [] { engine("small")->draw({}, soon()).get(); });
}

TEST_F(Triton, SaysWhyAModelFails) {
  const auto faulty = engine("faulty", {{"input_ids", "tokens"}});
  faulty->state(soon()).get();
  const RewardRequest request{{1, 2}, {3}};
  test::expect_error(ErrorCode::kUnavailable, "no score today",
                     [&] { faulty->reward(request, soon()).get(); });
  EXPECT_FALSE(faulty->abilities().scores);
  test::expect_refused("no parameter weights", [&] { faulty->load_weights("/x", soon()).get(); });

  post("/v2/repository/models/faulty/unload");
  // Gone now, but it was there when it was asked first: the server may load it again.
  test::expect_error(ErrorCode::kUnavailable, "'faulty' has no available versions",
                     [&] { faulty->reward(request, soon()).get(); });
  test::expect_error(ErrorCode::kUnavailable, "is not ready", [&] { faulty->state(soon()).get(); });
  post("/v2/repository/models/faulty/load");
  faulty->state(soon()).get();
}

}  // namespace
}  // namespace retort::engines
