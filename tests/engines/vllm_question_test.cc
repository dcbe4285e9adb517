// What vLLM is never asked, and folders that it is never given.
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "engines/vllm/completion_question.h"
#include "engines/vllm/refusal.h"
#include "engines/vllm/weights.h"
#include "models/safetensors/safetensors.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines::vllm {
namespace {

using nlohmann::json;
using test::expect_refused;

DrawRequest a_draw() {
  DrawRequest request{.prompt = {1, 2}, .seed = 3};
  request.how.max_new_tokens = 4;
  return request;
}
json body_of(const DrawRequest& request, int64_t vocab_rows = 0) {
  return json::parse(draw_question(request, "m", "id", vocab_rows).body);
}

TEST(DrawQuestion, RefusesWhatVllmDoesOtherwise) {
  const auto refused = [](const std::string& part,
                          const std::function<void(DrawRequest&)>& change) {
    DrawRequest request = a_draw();
    change(request);
    expect_refused(part, [&] { body_of(request); });
  };
  refused("temperature", [](DrawRequest& r) { r.how.sampling.temperature = 0.009; });
  refused("temperature", [](DrawRequest& r) { r.how.sampling.temperature = -1; });
  refused("min_p", [](DrawRequest& r) {
    r.how.sampling.min_p = 0.1;
    r.how.sampling.top_p = 0.9;
  });
  refused("seed", [](DrawRequest& r) { r.seed = UINT64_MAX; });
  refused("prompt", [](DrawRequest& r) { r.prompt.clear(); });
  refused("max_new_tokens", [](DrawRequest& r) { r.how.max_new_tokens = 0; });
  refused("UTF-8", [](DrawRequest& r) { r.how.stop = {"\xFF"}; });
  refused("typical_p: vllm does not", [](DrawRequest& r) { r.how.sampling.typical_p = 0.9; });
}

TEST(DrawQuestion, SendsPenaltiesOfWhatWasDrawnAndTheLeastNumber) {
  DrawRequest request = a_draw();
  request.how.sampling.presence_penalty = 0.5;
  request.how.sampling.frequency_penalty = -0.25;
  request.how.min_new_tokens = 2;
  request.how.eos_token_ids = {1};
  request.how.stop_token_ids = {5};
  request.how.stop = {"x"};
  const json body = body_of(request);
  EXPECT_EQ(body.at("presence_penalty"), 0.5);
  EXPECT_EQ(body.at("frequency_penalty"), -0.25);
  EXPECT_EQ(body.at("min_tokens"), 2);
  EXPECT_EQ(body.at("stop_token_ids"), json::array({1, 5}));
  EXPECT_EQ(body.at("stop"), json::array({"x"}));
}

TEST(DrawQuestion, SendsTheBitsOfTheSeed) {
  DrawRequest request = a_draw();
  for (const int64_t seed : {int64_t{0}, int64_t{17}, int64_t{-2}, INT64_MIN, INT64_MAX}) {
    request.seed = static_cast<uint64_t>(seed);
    EXPECT_EQ(body_of(request).at("seed").get<int64_t>(), seed);
  }
}

TEST(DrawQuestion, MasksRowsThatAreNoIds) {
  DrawRequest request = a_draw();
  request.how.sampling.num_ids = 10;
  EXPECT_FALSE(body_of(request).contains("logit_bias")) << "nothing is known of the rows";
  EXPECT_FALSE(body_of(request, 10).contains("logit_bias"));
  EXPECT_FALSE(body_of(request, 10 + 1025).contains("logit_bias")) << "more than vLLM takes";
  EXPECT_EQ(body_of(request, 12).at("logit_bias"), (json{{"10", -100.0}, {"11", -100.0}}));
  EXPECT_EQ(body_of(request, 10 + 1024).at("logit_bias").size(), 1024u);
  request.how.sampling.num_ids = 0;
  EXPECT_FALSE(body_of(request, 12).contains("logit_bias"));
}

TEST(DrawQuestion, LeavesRoomForItsAnswer) {
  DrawRequest request = a_draw();
  const uint64_t small = draw_question(request, "m", "id", 0).body_bytes;
  request.how.max_new_tokens += 1000;
  EXPECT_GE(draw_question(request, "m", "id", 0).body_bytes, small + 1000 * 500);
}

TEST(ScoreQuestion, RefusesPositionsThatAreNone) {
  const auto ask = [](std::vector<int32_t> positions, int64_t top_k = 0) {
    score_question({.token_ids = {5, 6, 7}, .positions = std::move(positions), .top_k = top_k}, "m",
                   "id");
  };
  ask({0, 1});
  expect_refused("positions: there are none", [&] { ask({}); });
  expect_refused("no token after it", [&] { ask({0, 2}); });
  expect_refused("must increase", [&] { ask({1, 1}); });
  expect_refused("must increase", [&] { ask({-1, 1}); });
  expect_refused("top_k", [&] { ask({0}, -1); });
}

TEST(ScoreQuestion, LeavesRoomForItsAnswer) {
  ScoreRequest request{.token_ids = std::vector<int32_t>(1001, 1), .positions = {0}, .top_k = 64};
  const uint64_t one = score_question(request, "m", "id").body_bytes;
  request.positions = {999};
  const uint64_t all = score_question(request, "m", "id").body_bytes;
  EXPECT_GE(all - one, 998 * 65 * 500) << "of each position that is sent, whether it is wanted";
  EXPECT_EQ(json::parse(score_question(request, "m", "id").body).at("prompt").size(), 1001u);
}

TEST(Refusal, FindsTheLimit) {
  const auto limit = log_prob_limit(
      "status 400: Requested prompt logprobs of 65, which is greater than max allowed: 64 (para");
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->asked, 65);
  EXPECT_EQ(limit->allowed, 64);
  EXPECT_FALSE(log_prob_limit("Requested sample logprobs of 65"));
  EXPECT_FALSE(log_prob_limit("Requested prompt logprobs of x, greater than max allowed: y"));
}

TEST(Refusal, LeavesOtherErrorsAlone) {
  const Error error = Error(ErrorCode::kUnavailable, "gone").with("status", 500);
  EXPECT_EQ(explained(error).message(), "gone");
  EXPECT_EQ(explained_admin(error).message(), "gone");
  EXPECT_EQ(status_of(error), 500);
  EXPECT_EQ(status_of(Error(ErrorCode::kUnavailable, "gone")), 0);
}

class WeightFolder : public test::FolderTest {
 protected:
  void write(bool tied, std::vector<std::pair<std::string, at::Tensor>> tensors) {
    put(folder_ / "config.json", std::string(R"({"architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 4, "hidden_act": "silu", "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": )") +
                                     (tied ? "true}" : "false}"));
    models::write_safetensors(folder_ / "model.safetensors", tensors);
  }
  const at::Tensor table_ = at::zeros({8, 4});
};

TEST_F(WeightFolder, CarriesItsHead) {
  for (const bool tied : {false, true}) {
    write(tied, {{"model.embed_tokens.weight", table_}, {"lm_head.weight", table_}});
    check_weight_folder(folder_);
  }
  write(true, {{"model.embed_tokens.weight", table_}});
  test::expect_error(ErrorCode::kMismatch, "tied head", [&] { check_weight_folder(folder_); });
  write(false, {{"lm_head.weight", table_}});
  test::expect_error(ErrorCode::kMismatch, "embed_tokens", [&] { check_weight_folder(folder_); });
  write(true, {{"model.embed_tokens.weight", table_}, {"lm_head.weight", at::zeros({8, 2})}});
  test::expect_error(ErrorCode::kMismatch, "shape", [&] { check_weight_folder(folder_); });
}

TEST_F(WeightFolder, IsWhole) {
  expect_refused("config.json", [&] { check_weight_folder(folder_); });
  write(false, {{"model.embed_tokens.weight", table_}, {"lm_head.weight", table_}});
  const std::string bytes = get(folder_ / "model.safetensors");
  put(folder_ / "model.safetensors", bytes.substr(0, bytes.size() - 8));
  EXPECT_EQ(test::code_of([&] { check_weight_folder(folder_); }), ErrorCode::kCorrupt);
  expect_refused("is no folder", [&] { check_weight_folder(folder_ / "model.safetensors"); });
  expect_refused("not absolute", [&] { check_weight_folder("weights"); });
}

}  // namespace
}  // namespace retort::engines::vllm
