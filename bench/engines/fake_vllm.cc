#include "bench/engines/fake_vllm.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/http/scripted_server.h"
#include "tests/support/process.h"

namespace retort::bench {
namespace {

using nlohmann::json;

std::string entry(int64_t id, float log_prob, int64_t rank) {
  char text[128];
  std::snprintf(text, sizeof text, R"("%lld":{"logprob":%.17g,"rank":%lld,"decoded_token":" abc"})",
                static_cast<long long>(id), double{log_prob}, static_cast<long long>(rank));
  return text;
}

// The given token first, then the others by rank: probabilities of 1/70 and less.
std::string row(int64_t given, int64_t top_k, int64_t vocab_rows) {
  std::string text = "{" + entry(given, -11.390861511230469F, 50'198);
  for (int64_t rank = 1; rank <= top_k; ++rank) {
    const int64_t id = (given + rank * 2'311) % vocab_rows;
    text += "," + entry(id, -4.2503204345703125F - 0.0123F * static_cast<float>(rank), rank);
  }
  return text + "}";
}

std::string score(const json& request, int64_t vocab_rows) {
  const auto ids = request.at("prompt").get<std::vector<int64_t>>();
  const auto top_k = request.at("prompt_logprobs").get<int64_t>();
  std::string rows = "null";
  for (size_t i = 1; i < ids.size(); ++i)
    rows += "," + row(ids[i], top_k, vocab_rows);
  return R"({"id":"cmpl-8ec5d259fc572121","object":"text_completion","created":1795393343,)"
         R"("model":"m","choices":[{"index":0,"text":"ith","logprobs":null,)"
         R"("finish_reason":"length","stop_reason":null,"token_ids":[307],"prompt_logprobs":[)" +
         rows + R"(],"prompt_token_ids":)" + json(ids).dump() +
         R"(,"routed_experts":null}],"service_tier":null,"system_fingerprint":null,"usage":)"
         R"({"prompt_tokens":9,"total_tokens":10,"completion_tokens":1}})";
}

std::string answer(const test::Received& received, int64_t vocab_rows) {
  const std::string type = "Content-Type: application/json\r\n";
  if (received.target == "/health") return test::reply(200, "");
  if (received.target == "/version") return test::reply(200, R"({"version":"0.32.0"})", type);
  if (received.target == "/v1/models")
    return test::reply(
        200, R"({"object":"list","data":[{"id":"m","object":"model","max_model_len":16384}]})",
        type);

  const json request = json::parse(received.body);
  const auto top_k = request.at("prompt_logprobs").get<int64_t>();
  if (top_k >= 0 && top_k <= 64) return test::reply(200, score(request, vocab_rows), type);
  const std::string asked = std::to_string(top_k < 0 ? vocab_rows : top_k);
  return test::reply(400,
                     R"({"error":{"message":"Requested prompt logprobs of )" + asked +
                         R"(, which is greater than max allowed: 64","type":"BadRequestError",)"
                         R"("param":"prompt_logprobs","code":400}})",
                     type);
}

}  // namespace

int run_fake_vllm(int64_t vocab_rows) {
  const test::ScriptedServer server(test::answer_all(
      [=](const test::Received& received) { return answer(received, vocab_rows); }));
  test::say(server.url(""));
  while (test::hear()) {
  }
  return 0;
}

}  // namespace retort::bench
