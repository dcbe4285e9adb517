// Bodies of binary tensors: what is sent, and that an answer is taken only if it is one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "engines/kserve/answer_checks.h"
#include "engines/kserve/binary_tensors.h"
#include "tests/engines/kserve_recorded.h"
#include "tests/support/thrown.h"

namespace retort::engines::kserve {
namespace {

using test::expect_error;

std::shared_ptr<const std::vector<int32_t>> ids(std::vector<int32_t> values) {
  return std::make_shared<const std::vector<int32_t>>(std::move(values));
}

// The question that kScores answers.
InferQuestion score_question() {
  return {.id = "retort-1",
          .model = "small",
          .inputs = {{"input_ids", ids({5, 6, 7, 8, 9})}, {"positions", ids({0, 2, 3})}},
          .outputs = {{"given_logprobs", "FP32", {3}},
                      {"topk_ids", "INT32", {3, 2}},
                      {"topk_logprobs", "FP32", {3, 2}}}};
}

http::Response response(std::string_view header_length, std::string_view body) {
  http::Response response{.status = 200, .body = std::string(body)};
  if (!header_length.empty())
    response.headers.push_back({"inference-header-content-length", std::string(header_length)});
  return response;
}
http::Response response(const recorded::Answer& answer) {
  return response(answer.header_length, answer.body);
}

http::Response header_alone(std::string_view json) {
  return response(std::to_string(json.size()), json);
}

// The recorded answer with `from` of its JSON replaced, and the header's length with it.
http::Response changed(const std::string& from, const std::string& to) {
  std::string body(recorded::kScores.body);
  const size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  body.replace(at, from.size(), to);
  const size_t length = 347 + to.size() - from.size();
  return response(std::to_string(length), body);
}

void expect_refused(ErrorCode code, const std::string& part, http::Response answer,
                    std::source_location caller = std::source_location::current()) {
  expect_error(
      code, part, [&] { read_infer_answer(score_question(), std::move(answer)); }, caller);
}

TEST(BinaryRequest, IsAHeaderAndTheNumbersWhereTheyLie) {
  const InferQuestion question = score_question();
  const http::Request request = infer_request(question);
  ASSERT_EQ(request.body.size(), 3u);
  EXPECT_EQ(request.body[0].bytes,
            R"({"id":"retort-1","inputs":[)"
            R"({"name":"input_ids","shape":[5],"datatype":"INT32",)"
            R"("parameters":{"binary_data_size":20}},)"
            R"({"name":"positions","shape":[3],"datatype":"INT32",)"
            R"("parameters":{"binary_data_size":12}}],"outputs":[)"
            R"({"name":"given_logprobs","parameters":{"binary_data":true}},)"
            R"({"name":"topk_ids","parameters":{"binary_data":true}},)"
            R"({"name":"topk_logprobs","parameters":{"binary_data":true}}]})");
  EXPECT_EQ(*http::find_header(request.headers, kHeaderLength),
            std::to_string(request.body[0].bytes.size()));

  const auto* numbers = reinterpret_cast<const char*>(question.inputs[0].values->data());
  EXPECT_EQ(request.body[1].bytes.data(), numbers);
  EXPECT_EQ(request.body[1].bytes.size(), 20u);
  EXPECT_EQ(request.limits.body_bytes, 4096u + 3 * 1024 + 12 + 24 + 24);
}

TEST(BinaryAnswer, IsReadWhereItLies) {
  http::Response answer = response(recorded::kScores);
  const char* const begin = answer.body.data();
  const char* const end = begin + answer.body.size();
  const auto tensors = read_infer_answer(score_question(), std::move(answer));
  ASSERT_EQ(tensors.size(), 3u);
  const at::Tensor& top = tensors.at("topk_ids");
  EXPECT_EQ(top.sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_EQ(top.scalar_type(), at::kInt);
  const auto* id = top.const_data_ptr<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(id, id + 6), (std::vector<int32_t>{368, 182, 32, 63, 249, 210}));
  EXPECT_NEAR(tensors.at("given_logprobs").const_data_ptr<float>()[0], -8.573266, 1e-5);
  EXPECT_NEAR(tensors.at("topk_logprobs").const_data_ptr<float>()[5], -3.599436, 1e-5);
  for (const auto& [name, tensor] : tensors) {
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    EXPECT_TRUE(begin <= data && data < end) << name << " was copied";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4, 0u) << name;
  }
}

// The second tensor begins at no multiple of four bytes.
TEST(BinaryAnswer, OfTwoByteNumbersKeepsWhatFollowsInPlace) {
  InferQuestion question{
      .id = "1", .model = "m", .outputs = {{"h", "BF16", {1, 3}}, {"s", "FP32", {1}}}};
  const std::string header =
      R"({"model_name":"m","id":"1","outputs":[{"name":"h","datatype":"BF16","shape":[1,3],)"
      R"("parameters":{"binary_data_size":6}},{"name":"s","datatype":"FP32","shape":[1],)"
      R"("parameters":{"binary_data_size":4}}]})";
  const std::vector<uint16_t> states{0x3f80, 0xc000, 0x4040};  // 1, -2, 3
  const float score = 2.5;
  std::string body = header;
  body.append(reinterpret_cast<const char*>(states.data()), 6);
  body.append(reinterpret_cast<const char*>(&score), 4);
  const auto tensors = read_infer_answer(question, response(std::to_string(header.size()), body));
  const auto* state = tensors.at("h").const_data_ptr<c10::BFloat16>();
  EXPECT_EQ(float{state[0]}, 1);
  EXPECT_EQ(float{state[1]}, -2);
  EXPECT_EQ(float{state[2]}, 3);
  EXPECT_EQ(*tensors.at("s").const_data_ptr<float>(), score);
}

TEST(BinaryAnswer, WithoutASaneHeaderIsRefused) {
  const std::string_view body = recorded::kScores.body;
  expect_refused(ErrorCode::kMismatch, "no header Inference-Header-Content-Length",
                 response("", body));
  for (const char* length : {"0x15b", "-1", "408", "99999999999999999999", "347 "})
    expect_refused(ErrorCode::kCorrupt, "Inference-Header-Content-Length is",
                   response(length, body));
  expect_refused(ErrorCode::kCorrupt, "expected JSON", response("346", body));
  expect_refused(ErrorCode::kCorrupt, "expected JSON", response("348", body));
  expect_refused(ErrorCode::kCorrupt, "expected JSON, found \"<html>", response("6", "<html>"));
  expect_refused(ErrorCode::kCorrupt, "expected JSON", response("400", std::string(400, '[')));
  expect_refused(ErrorCode::kCorrupt, "expected an object", response("2", "[]"));
  expect_refused(ErrorCode::kCorrupt, "no field \"model_name\"", response("2", "{}"));
}

TEST(BinaryAnswer, ToAnotherQuestionIsRefused) {
  expect_refused(ErrorCode::kMismatch, "id is \"retort-2\"; the request's is \"retort-1\"",
                 changed("retort-1", "retort-2"));
  expect_refused(ErrorCode::kMismatch, "model_name is \"big\"; asked was \"small\"",
                 changed("small", "big"));
  expect_refused(ErrorCode::kMismatch, "outputs has \"topk_idz\"", changed("topk_ids", "topk_idz"));
  expect_refused(
      ErrorCode::kCorrupt, "outputs has \"topk_ids\" twice",
      changed(R"("topk_logprobs","datatype":"FP32")", R"("topk_ids","datatype":"INT32")"));
  expect_refused(ErrorCode::kMismatch, "datatype is \"INT64\"; expected INT32",
                 changed("INT32", "INT64"));
  expect_refused(ErrorCode::kMismatch, "shape is [2, 3]; expected [3, 2]",
                 changed("[3,2]", "[2,3]"));
  expect_refused(ErrorCode::kMismatch, "shape is [1, 3]; expected [3]", changed("[3]", "[1,3]"));
  expect_refused(ErrorCode::kCorrupt, "shape is [3.5]", changed("[3]", "[3.5]"));
  expect_refused(ErrorCode::kCorrupt, "shape is", changed("[3]", "[99999999999]"));
  expect_refused(ErrorCode::kCorrupt, "outputs is 7",
                 header_alone(R"({"model_name":"small","id":"retort-1","outputs":7})"));
  expect_refused(ErrorCode::kMismatch, "outputs lacks \"given_logprobs\"",
                 header_alone(R"({"model_name":"small","id":"retort-1","outputs":[]})"));
}

TEST(BinaryAnswer, WhoseSizesDisagreeIsRefused) {
  expect_refused(ErrorCode::kMismatch, "no parameters.binary_data_size",
                 changed("binary_data_size", "size"));
  expect_refused(ErrorCode::kCorrupt, "binary_data_size is 0; its shape [3] of FP32 has 12 bytes",
                 changed("\"binary_data_size\":12", "\"binary_data_size\":0"));
  expect_refused(ErrorCode::kCorrupt, "binary_data_size is -12",
                 changed("\"binary_data_size\":12", "\"binary_data_size\":-12"));
  std::string body(recorded::kScores.body);
  expect_refused(ErrorCode::kCorrupt, "61 bytes behind its header; its outputs have 60",
                 response("347", body + "x"));
  body.pop_back();
  expect_refused(ErrorCode::kCorrupt, "59 bytes behind its header", response("347", body));
}

at::Tensor floats(std::vector<float> values, std::vector<int64_t> shape) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  std::string body;
  InferQuestion question{.id = "1", .model = "m", .outputs = {{"x", "FP32", shape}}};
  const std::string header =
      R"({"model_name":"m","id":"1","outputs":[{"name":"x","datatype":"FP32","shape":[)" +
      std::to_string(shape[0]) + "," + std::to_string(shape[1]) +
      R"(],"parameters":{"binary_data_size":)" + std::to_string(owner->size() * 4) + "}}]}";
  body = header + std::string(reinterpret_cast<const char*>(owner->data()), owner->size() * 4);
  return read_infer_answer(question, response(std::to_string(header.size()), body)).at("x");
}

TEST(Numbers, ThatCannotBeLogProbabilitiesAreRefused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  check_log_probs("x", floats({0, -1, -kInfinity, -1e30F}, {2, 2}));
  for (const float wrong : {1e-6F, kInfinity, std::nanf("")})
    expect_error(ErrorCode::kCorrupt, "x[1, 0] is", [&] {
      check_log_probs("x", floats({0, -1, wrong, -2}, {2, 2}));
    });
}

TEST(Numbers, ThatAreNotFiniteAreNoHiddenStates) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor good = floats({0, 3e38F, -3e38F, 1e-40F}, {2, 2});
  check_finite("x", good);
  for (const float wrong : {kInfinity, -kInfinity, std::nanf("")}) {
    const at::Tensor bad = floats({0, 1, 2, wrong}, {2, 2});
    expect_error(ErrorCode::kCorrupt, "x[1, 1] is no number", [&] { check_finite("x", bad); });
    for (const auto dtype : {at::kHalf, at::kBFloat16}) {
      check_finite("x", floats({0, 1, -2, 60000}, {2, 2}).to(dtype));
      expect_error(ErrorCode::kCorrupt, "x[1, 1]", [&] { check_finite("x", bad.to(dtype)); });
    }
  }
}

TEST(Numbers, OfATopKFallAndHaveIdsOnce) {
  const at::Tensor log_probs = floats({-1, -1, -2, -3}, {2, 2});
  const auto top = [&](std::vector<float> values) {
    return floats(std::move(values), {2, 2}).to(at::kInt);
  };
  check_top_k(top({0, 1, 1, 9}), log_probs, 10);
  check_top_k(top({0, 1, 1, 99}), log_probs, 0);
  expect_error(ErrorCode::kCorrupt, "topk_ids[1, 1] is 10; the vocabulary has 10 ids", [&] {
    check_top_k(top({0, 1, 1, 10}), log_probs, 10);
  });
  expect_error(ErrorCode::kCorrupt, "topk_ids[0, 0] is -1", [&] {
    check_top_k(top({-1, 1, 1, 9}), log_probs, 0);
  });
  expect_error(ErrorCode::kCorrupt, "topk_ids[1] has id 4 twice", [&] {
    check_top_k(top({0, 1, 4, 4}), log_probs, 10);
  });
  expect_error(ErrorCode::kCorrupt, "topk_logprobs[1, 1] is -2.0", [&] {
    check_top_k(top({0, 1, 1, 9}), floats({-1, -2, -3, -2}, {2, 2}), 10);
  });
}

}  // namespace
}  // namespace retort::engines::kserve
