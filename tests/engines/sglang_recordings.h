// A server with the exchanges of SGLang (make_sglang.py), the adapter that asks it, and the
// questions.
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
#include "engines/engine.h"
#include "models/safetensors.h"
#include "tests/engines/recorded_fixture.h"
#include "tests/engines/recorded_server.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"

namespace retort::test {

class RecordedSglang : public FolderTest {
 protected:
  RecordedSglang() {
    put(folder_ / "weights/config.json", kSmallConfig);
    models::write_safetensors(
        folder_ / "weights/model.safetensors",
        {{"model.embed_tokens.weight", at::zeros({8, 4})}, {"lm_head.weight", at::zeros({8, 4})}});
    exchanges_ = read_exchanges(source_folder() / "tests/engines/recorded/sglang-0.5.23");
    server_ = std::make_unique<RecordedServer>(
        exchanges_, std::map<std::string, std::string>{{"rid", ""},
                                                       {"cache_salt", ""},
                                                       {"weight_version", "default"},
                                                       {"model_path", "/models/tiny"}});
    engine_ = make();
  }
  // The engine goes first, and with it the connections that the server's threads read from.
  ~RecordedSglang() override {
    engine_.reset();
    EXPECT_EQ(server_->unknown(), expected_unknown_);
  }

  engines::Engine& engine() { return *engine_; }
  RecordedServer& server() { return *server_; }
  const Exchange& exchange(const std::string& name) const { return exchanges_.at(name); }
  nlohmann::json answer(const std::string& name) const {
    return nlohmann::json::parse(exchange(name).answer.at("body").get<std::string>());
  }
  std::string weights() const { return (folder_ / "weights").string(); }

  // What it may ask before the first question.
  static std::vector<std::string> first() { return {"model", "server", "vocabulary"}; }

  std::unique_ptr<engines::Engine> make(engines::ExternalOptions options = {},
                                        const std::string& key = "") const {
    return make_at(server_->url(), std::move(options), key);
  }
  static std::unique_ptr<engines::Engine> make_at(const std::string& url,
                                                  engines::ExternalOptions options = {},
                                                  const std::string& key = "") {
    options.engine = engines::EngineKind::kSglang;
    return engines::make_engine(options, url, key);
  }

  // Of draw-length.
  static engines::DrawRequest draw() {
    engines::DrawRequest request{.prompt = {10, 21, 32, 43, 54}, .seed = 17};
    request.how = {.sampling = {.num_ids = 400}, .max_new_tokens = 12, .eos_token_ids = {2}};
    return request;
  }
  // Of score-given and score-top, with tokens after them that decide about nothing.
  static engines::ScoreRequest score(std::vector<int32_t> positions, int64_t top_k) {
    return {.token_ids = {7, 160, 23, 310, 2, 2, 55, 23, 310, 99, 301, 12},
            .positions = std::move(positions),
            .top_k = top_k};
  }

  std::vector<std::string> expected_unknown_;

 private:
  std::map<std::string, Exchange> exchanges_;
  std::unique_ptr<RecordedServer> server_;
  std::unique_ptr<engines::Engine> engine_;
};

}  // namespace retort::test
