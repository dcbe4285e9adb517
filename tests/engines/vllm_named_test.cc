// Ids that are named for each position, at vLLM's /inference/v1/generate: what a server answered,
// and by hand what none should.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/engines/npy_bytes.h"
#include "tests/engines/vllm_recordings.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using nlohmann::json;
using test::soon;

class VllmNamed : public test::RecordedVllm {
 protected:
  VllmNamed() {
    // Positions 2, 3 and 5 of score()'s tokens: row 2 is of position 4, and has ids of position 3.
    const json ids = json::parse("[[9, 8], [7, 6], [7, 6], [5, 4]]");
    const json parameters = {{"max_tokens", 1},
                             {"temperature", 0.0},
                             {"prompt_logprob_start", 2},
                             {"prompt_logprob_token_ids", ids}};
    const json body = {{"model", "m"},
                       {"token_ids", {7, 160, 23, 310, 2, 2, 55}},
                       {"stream", false},
                       {"sampling_params", parameters}};
    exchanges_["named"] = {
        .request = {{"method", "POST"}, {"path", "/inference/v1/generate"}, {"body", body}},
        .answer = {{"status", 200},
                   {"content_type", "application/json"},
                   {"body", answer_of(test::npy_bytes(kNumbers, "(4, 2)"))}}};
    engine_.reset();
    server_ = std::make_unique<test::RecordedServer>(exchanges_);
    engine_ = make();
  }

  static std::string answer_of(const std::string& npy) {
    return around("\"" + test::base64_text(npy) + "\"");
  }
  static std::string around(const std::string& matrix) {
    return "{\"request_id\":\"generate-tokens-${request_id}\",\"model\":\"m\",\"usage\":{"
           "\"prompt_tokens\":7},\"prompt_logprobs\":null,\"prompt_token_id_logprobs\":" +
           matrix +
           ",\"choices\":[{\"index\":0,\"token_ids\":[4154],\"prompt_token_id_logprobs\":3}]}";
  }

  at::Tensor asked() {
    const at::Tensor ids = at::tensor({9, 8, 7, 6, 5, 4}, at::kInt).view({3, 2});
    return engine().log_probs_at(score({2, 3, 5}, 0), ids, soon()).get();
  }
  void expect_fault(ErrorCode code, const std::string& part, const std::string& reply) {
    SCOPED_TRACE(part);
    server().answer("named", reply);
    expect_named(code, part, [&] { asked(); });
  }

  // A row that nobody wants may be anything.
  static inline const std::vector<float> kNumbers{
      -1, -2, -3, -4, std::numeric_limits<float>::quiet_NaN(), 1, -5.5F, -6};
};

TEST_F(VllmNamed, NamesIdsOfEachPosition) {
  engine().state(soon()).get();
  EXPECT_EQ(engine().abilities().max_named_ids, 24) << "--max-logprobs";
  const at::Tensor expected = at::tensor({-1.0F, -2.0F, -3.0F, -4.0F, -5.5F, -6.0F});
  EXPECT_TRUE(at::equal(asked(), expected.view({3, 2})));
}

TEST_F(VllmNamed, RefusesIdsOfOtherRows) {
  const at::Tensor ids = at::tensor({1, 2, 3, 4}, at::kInt).view({2, 2});
  test::expect_error(ErrorCode::kInvalidArgument, "ids", [&] {
    engine().log_probs_at(score({2, 3, 5}, 0), ids, soon()).get();
  });
}

TEST_F(VllmNamed, MatricesThatCannotBe) {
  const auto matrix = [](size_t at, float value) {
    std::vector<float> numbers = kNumbers;
    numbers[at] = value;
    return json_reply(answer_of(test::npy_bytes(numbers, "(4, 2)")));
  };
  expect_fault(ErrorCode::kCorrupt, "position 3, column 1",
               matrix(3, std::numeric_limits<float>::quiet_NaN()));
  expect_fault(ErrorCode::kCorrupt, "at most 0", matrix(0, 0.5F));
  expect_fault(ErrorCode::kCorrupt, "position 5, column 0",
               matrix(6, -std::numeric_limits<float>::infinity()));
  expect_fault(ErrorCode::kCorrupt, "NaN or minus infinity", matrix(7, -9999));

  // These answers have other rows, columns or numbers than were asked for.
  const auto shaped = [](const std::string& shape, const std::string& dtype = "<f4") {
    return json_reply(answer_of(test::npy_bytes(kNumbers, shape, dtype)));
  };
  expect_fault(ErrorCode::kCorrupt, "[2, 4], and [4, 2]", shaped("(2, 4)"));
  expect_fault(ErrorCode::kCorrupt, "no matrix", shaped("(8,)"));
  expect_fault(ErrorCode::kCorrupt, "<f2", shaped("(4, 2)", "<f2"));
  expect_fault(ErrorCode::kCorrupt, "no base64", json_reply(around("\"k05V*\"")));
  expect_fault(ErrorCode::kCorrupt, "instead of base64", json_reply(around("[[-1, -2]]")));
  expect_fault(ErrorCode::kMismatch, "VLLM_USE_V2_MODEL_RUNNER=1", json_reply(around("null")));
  expect_fault(ErrorCode::kMismatch, "is missing", json_reply("{}"));
  expect_fault(ErrorCode::kCorrupt, "instead of an object", json_reply("[]"));
  expect_fault(ErrorCode::kCorrupt, "ends too early", json_reply("{\"request_id\":\""));
}

TEST_F(VllmNamed, SaysHowToOpenTheDoor) {
  expect_fault(ErrorCode::kInvalidArgument, "--enable-scale-out",
               test::reply(403, "{\"error\": {\"message\": \"endpoints are disabled\"}}"));
  expect_fault(ErrorCode::kInvalidArgument, "--enable-scale-out", test::reply(404, "{}"));
  expect_fault(ErrorCode::kInvalidArgument, "0.32 or later",
               test::reply(400, "{\"error\": {\"message\": \"Expected int, got list\"}}"));
  expect_fault(ErrorCode::kUnavailable, "EngineCore",
               test::reply(500, "{\"error\": {\"message\": \"EngineCore is dead\"}}"));
}

class VllmNamedRecorded : public test::RecordedVllm {
 protected:
  VllmNamedRecorded() {
    exchanges_.merge(
        test::read_exchanges(test::source_folder() / "tests/engines/recorded/vllm-0.32.0-named"));
    engine_.reset();
    server_ = std::make_unique<test::RecordedServer>(exchanges_);
    engine_ = make();
  }
};

// Asked for the ids of its own top-k, the least probable first, with a gap among the positions.
TEST_F(VllmNamedRecorded, NumbersAreThoseOfItsTopK) {
  const Scored top = engine().score(score({2, 3, 5}, 3), soon()).get();
  const at::Tensor ids = at::flip(top.ids, {1}).to(at::kInt).contiguous();
  const at::Tensor numbers = engine().log_probs_at(score({2, 3, 5}, 0), ids, soon()).get();
  EXPECT_TRUE(at::allclose(numbers, at::flip(top.log_probs, {1}), /*rtol=*/0, /*atol=*/1e-5))
      << numbers << top.log_probs;
}

TEST_F(VllmNamedRecorded, RefusalsSayWhatToDo) {
  const at::Tensor ids = at::tensor({265, 279, 353, 353, 166, 114, 404, 370, 323}, at::kInt);
  const auto expect_refusal = [&](ErrorCode code, const std::string& part, const char* recorded) {
    SCOPED_TRACE(recorded);
    server().answer("named", exchange(recorded).reply());
    expect_named(code, part, [&] {
      engine().log_probs_at(score({2, 3, 5}, 0), ids.view({3, 3}), soon()).get();
    });
  };
  expect_refusal(ErrorCode::kInvalidArgument, "is not open; start vLLM 0.32", "closed");
  expect_refusal(ErrorCode::kInvalidArgument,
                 "need vLLM 0.32 or later with VLLM_USE_V2_MODEL_RUNNER=1", "runner");
  expect_refusal(ErrorCode::kInvalidArgument, "at most --max-logprobs of them", "too-many");
  expect_refusal(ErrorCode::kMismatch, "another tokenizer", "unknown-id");
}

}  // namespace
}  // namespace retort::engines
