// What tests with a server's recorded exchanges share: the server, the adapter that asks it, and
// the questions.
#pragma once

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "engines/contract/engine.h"
#include "models/safetensors/safetensors.h"
#include "tests/engines/recorded_server.h"
#include "tests/http/requests.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::test {

inline constexpr const char* kSmallConfig = R"({"architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "head_dim": 4, "hidden_act": "silu", "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true})";

class RecordedEngine : public FolderTest {
 protected:
  // `recorded`: a folder of tests/engines/recorded.
  explicit RecordedEngine(const std::string& recorded)
      : exchanges_(read_exchanges(source_folder() / "tests/engines/recorded" / recorded)) {
    put(folder_ / "weights/config.json", kSmallConfig);
    models::write_safetensors(
        folder_ / "weights/model.safetensors",
        {{"model.embed_tokens.weight", at::zeros({8, 4})}, {"lm_head.weight", at::zeros({8, 4})}});
  }
  // The engine goes first, and with it the connections that the server's threads read from.
  ~RecordedEngine() override {
    engine_.reset();
    EXPECT_EQ(server_->unknown(), expected_unknown_);
  }

  engines::Engine& engine() { return *engine_; }
  RecordedServer& server() { return *server_; }
  const Exchange& exchange(const std::string& name) const { return exchanges_.at(name); }
  std::string weights() const { return (folder_ / "weights").string(); }
  // The body of an exchange's answer with `from` replaced once by `to`.
  std::string changed(const std::string& name, const std::string& from,
                      const std::string& to) const {
    std::string body = exchange(name).answer.at("body").get<std::string>();
    const size_t at = body.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) body.replace(at, from.size(), to);
    return body;
  }
  static std::string json_reply(const std::string& body) { return reply(200, body); }

  // The question of the exchange draw-length.
  static engines::DrawRequest draw() {
    engines::DrawRequest request{.prompt = {10, 21, 32, 43, 54}, .seed = 17};
    request.how = {.sampling = {.num_ids = 400}, .max_new_tokens = 12, .eos_token_ids = {2}};
    return request;
  }
  // The question of the exchanges score-given and score-top, with tokens after it that decide about
  // nothing.
  static engines::ScoreRequest score(std::vector<int32_t> positions, int64_t top_k) {
    return {.token_ids = {7, 160, 23, 310, 2, 2, 55, 23, 310, 99, 301, 12},
            .positions = std::move(positions),
            .top_k = top_k};
  }

  // Errors name the server, too.
  template <class F>
  void expect_named(ErrorCode code, const std::string& part, F&& call) {
    expect_error(code, part, call);
    expect_error(code, server().url(), call);
  }
  void expect_score_error(ErrorCode code, const std::string& part, const std::string& reply) {
    server().answer("score-top", reply);
    expect_named(code, part, [&] { engine().score(score({1, 4, 7}, 3), soon()).get(); });
  }
  void expect_draw_error(ErrorCode code, const std::string& part, const std::string& reply) {
    server().answer("draw-length", reply);
    expect_named(code, part, [&] { engine().draw(draw(), soon()).get(); });
  }

  // Pages, other encodings, answers cut short or too long.
  void expect_no_score_of_strangers() {
    const std::string html = "<html><body>Sign in</body></html>";
    expect_score_error(ErrorCode::kMismatch, "Sign in",
                       "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: " +
                           std::to_string(html.size()) + "\r\n\r\n" + html);
    expect_score_error(ErrorCode::kCorrupt, "no JSON at byte 0", json_reply(html));
    expect_score_error(ErrorCode::kMismatch, "gzip",
                       reply(200, "abc", "Content-Encoding: gzip\r\n"));
    const std::string whole = exchange("score-top").answer.at("body").get<std::string>();
    for (const size_t length : {size_t{0}, size_t{1}, size_t{700}, whole.size() - 1})
      expect_score_error(ErrorCode::kCorrupt, "ends too early",
                         json_reply(whole.substr(0, length)));
    expect_score_error(ErrorCode::kResourceExhausted, "answers more than was asked for",
                       json_reply(whole + std::string(1 << 20, ' ')));
  }
  // Ids of no row of the tokenizer; an end token in the middle.
  void expect_no_draw_of_others() {
    std::string body = exchange("draw-length").answer.at("body").get<std::string>();
    for (size_t at = 0; (at = body.find("331", at)) != std::string::npos;)
      body.replace(at, 3, "401");
    expect_draw_error(ErrorCode::kMismatch, "has 401", json_reply(body));
    const std::string early = exchange("draw-end").answer.at("body").get<std::string>();
    expect_draw_error(ErrorCode::kMismatch, "which no end token", json_reply(early));
  }

  std::map<std::string, Exchange> exchanges_;
  std::vector<std::string> expected_unknown_;
  std::unique_ptr<RecordedServer> server_;
  std::unique_ptr<engines::Engine> engine_;
};

}  // namespace retort::test
