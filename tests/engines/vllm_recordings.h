// A server with the recordings of vLLM, the adapter that asks it, and the questions.
#pragma once

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine.h"
#include "models/safetensors.h"
#include "tests/engines/recorded_fixture.h"
#include "tests/engines/recorded_server.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"

namespace retort::test {

class RecordedVllm : public FolderTest {
 protected:
  RecordedVllm() {
    exchanges_ = read_exchanges(source_folder() / "tests/engines/recorded/vllm-0.32.0");
    // The folder of this machine, in place of the one that was recorded.
    write_weights();
    exchanges_.at("reload").request["body"]["kwargs"]["weights_path"] = weights();
    server_ = std::make_unique<RecordedServer>(exchanges_);
    engine_ = make();
  }
  // The engine goes first, and with it the connections that the server's threads read from.
  ~RecordedVllm() override {
    engine_.reset();
    EXPECT_EQ(server_->unknown(), expected_unknown_);
  }

  engines::Engine& engine() { return *engine_; }
  RecordedServer& server() { return *server_; }
  nlohmann::json choice(const std::string& name) const { return exchanges_.at(name).choice(); }
  const Exchange& exchange(const std::string& name) const { return exchanges_.at(name); }
  std::string weights() const { return (folder_ / "weights").string(); }

  std::unique_ptr<engines::Engine> make(engines::ExternalOptions options = {},
                                        const std::string& key = "") const {
    return engines::make_engine(options, server_->url(), key);
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
  void write_weights() {
    put(folder_ / "weights/config.json", kSmallConfig);
    models::write_safetensors(
        folder_ / "weights/model.safetensors",
        {{"model.embed_tokens.weight", at::zeros({8, 4})}, {"lm_head.weight", at::zeros({8, 4})}});
  }

  std::map<std::string, Exchange> exchanges_;
  std::unique_ptr<RecordedServer> server_;
  std::unique_ptr<engines::Engine> engine_;
};

}  // namespace retort::test
