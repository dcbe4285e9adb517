#include "tests/engines/llamacpp/fake_server.h"

#include <utility>

#include "engines/make_engine.h"

namespace retort::engines::test {
namespace {

Json entry(int id, double log_prob) { return {{"id", id}, {"token", "x"}, {"logprob", log_prob}}; }

// `count` ids beside `id`, the last of which has another order than the first.
Json top_of(int id, double log_prob, int count) {
  Json top = Json::array();
  if (count > 0) top.push_back(entry(id, log_prob));
  for (int other = 0; static_cast<int>(top.size()) < count; ++other)
    if (other != id) top.push_back(entry(other, log_prob - 0.5 * static_cast<double>(top.size())));
  return top;
}

}  // namespace

std::string json_reply(const Json& body, int status) {
  return retort::test::reply(status, body.dump(), "Content-Type: application/json\r\n");
}

std::string error_reply(int status, const std::string& message) {
  return json_reply({{"error", {{"code", status}, {"message", message}, {"type", "some"}}}},
                    status);
}

Json completion_of(const Json& request, const std::vector<int>& tokens,
                   const std::string& stop_type) {
  const int num_top = request.at("n_probs");
  Json chances = Json::array();
  for (const int id : tokens)
    chances.push_back({{"id", id},
                       {"token", "x"},
                       {"logprob", -1.0},
                       {"top_logprobs", top_of(id, -1.0, num_top)}});
  Json settings = request;
  for (const char* name : {"prompt", "response_fields", "model"})
    settings.erase(name);
  return {{"tokens", tokens},
          {"completion_probabilities", chances},
          {"generation_settings", settings},
          {"stop_type", stop_type},
          {"stopping_word", ""},
          {"truncated", false}};
}

Json forced_of(const Json& request) {
  const int id = request.at("logit_bias").at(0).at(0);
  return completion_of(request, {id});
}

FakeServer::FakeServer() {
  set("/health", [](const Json&) { return json_reply({{"status", "ok"}}); });
  set("/v1/models", [](const Json&) {
    return json_reply(
        {{"data", {{{"id", "tiny"}, {"aliases", {"small"}}, {"meta", {{"n_vocab", 100}}}}}}});
  });
  set("/props", [](const Json&) {
    return json_reply({{"total_slots", 2},
                       {"default_generation_settings", {{"n_ctx", 64}}},
                       {"build_info", "b1-fake"}});
  });
  set("/tokenize", [](const Json&) {
    return json_reply({{"tokens",
                        {{{"id", 8}, {"piece", " "}},
                         {{"id", 9}, {"piece", {226, 130}}},
                         {{"id", 7}, {"piece", "a"}}}}});
  });
  set("/completion", [](const Json& request) { return json_reply(forced_of(request)); });
  server_ = std::make_unique<retort::test::ScriptedServer>([this](retort::test::Peer& peer) {
    while (const auto request = peer.read()) {
      const std::string reply = answer(*request);
      if (reply.empty() || !peer.write(reply)) return;
    }
  });
}

void FakeServer::set(const std::string& path, Door door) {
  const std::lock_guard lock(mutex_);
  doors_[path] = std::move(door);
}

std::vector<Json> FakeServer::bodies(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = bodies_.find(path);
  return found == bodies_.end() ? std::vector<Json>{} : found->second;
}

std::string FakeServer::answer(const retort::test::Received& request) {
  const std::string path = request.target.substr(0, request.target.find('?'));
  const Json body = request.body.empty() ? Json() : Json::parse(request.body);
  Door door;
  {
    const std::lock_guard lock(mutex_);
    bodies_[path].push_back(body);
    if (const auto found = doors_.find(path); found != doors_.end()) door = found->second;
  }
  return door ? door(body) : error_reply(404, "File Not Found");
}

ExternalOptions FakeServer::options() const {
  return {.engine = EngineKind::kLlamacpp, .url = {server_->url()}};
}

DrawRequest draw_request(int64_t tokens) {
  DrawRequest request{.prompt = {1, 2}, .how = {}, .seed = 7};
  request.how.max_new_tokens = tokens;
  return request;
}

std::unique_ptr<Engine> FakeServer::engine(const std::string& key) const {
  return make_engine(options(), server_->url(), key);
}

}  // namespace retort::engines::test
