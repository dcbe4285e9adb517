#include "tests/engines/reward_server.h"

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/engines/kserve_reply.h"

namespace retort::test {
namespace {

using Json = nlohmann::json;
namespace recorded = engines::kserve::recorded;
using engines::kserve::reply_with;

// The recorded model, which gives nothing but scores of two numbers.
std::string model() {
  Json model = Json::parse(recorded::kModel.body);
  model["outputs"] = Json::array({{{"name", "scores"}, {"datatype", "FP32"}, {"shape", {2}}}});
  return model.dump();
}

std::string configuration(int64_t vocab_rows) {
  Json configuration = Json::parse(recorded::kConfiguration.body);
  configuration["parameters"]["vocab_rows"]["string_value"] = std::to_string(vocab_rows);
  return configuration.dump();
}

}  // namespace

RewardServer::RewardServer(int64_t vocab_rows) : vocab_rows_(vocab_rows) {
  server_ = std::make_unique<ScriptedServer>(
      answer_all([this](const Received& request) { return answer(request); }));
}

std::string RewardServer::answer(const Received& request) {
  const std::string& path = request.target;
  if (path == "/v2") return reply_with(recorded::kServer);
  if (path == "/v2/repository/index") return reply_with(recorded::kIndex);
  if (path == "/v2/models/small") return reply(200, model());
  if (path == "/v2/models/small/config") return reply(200, configuration(vocab_rows_));
  if (path.ends_with("/ready")) return reply(200, "");
  if (path == "/v2/models/small/infer") return infer(request);
  return reply(404, "{\"error\":\"no such door\"}");
}

std::string RewardServer::infer(const Received& request) {
  if (before_answer) before_answer(scored_);
  const size_t header = std::stoul(request.headers.at("inference-header-content-length"));
  const Json question = Json::parse(request.body.substr(0, header));

  // Tensors lie behind the header, in the order of its list.
  std::map<std::string, std::vector<int32_t>> inputs;
  size_t offset = header;
  for (const Json& input : question.at("inputs")) {
    const auto bytes = input.at("parameters").at("binary_data_size").get<size_t>();
    std::vector<int32_t>& values = inputs[input.at("name")];
    values.resize(bytes / sizeof(int32_t));
    std::memcpy(values.data(), request.body.data() + offset, bytes);
    offset += bytes;
  }

  const auto tokens = static_cast<float>(inputs.at("input_ids").size()) -
                      static_cast<float>(inputs.at("prompt_length").at(0));
  const float scores[2] = {off_by + tokens, off_by + (tokens >= 2 && tokens <= 4 ? 1.0F : 0.0F)};
  ++scored_;
  const std::string head =
      Json{{"id", question.at("id")},
           {"model_name", "small"},
           {"model_version", "1"},
           {"outputs", Json::array({{{"name", "scores"},
                                     {"datatype", "FP32"},
                                     {"shape", {2}},
                                     {"parameters", {{"binary_data_size", sizeof scores}}}}})}}
          .dump();
  return reply_with(200, "application/octet-stream", std::to_string(head.size()),
                    head + std::string(reinterpret_cast<const char*>(scores), sizeof scores));
}

}  // namespace retort::test
