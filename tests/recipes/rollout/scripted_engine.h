// A generator's engine whose turns a test has written down.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "roles/generator/replica_engine.h"

namespace retort::test {

// Token ids of each turn, of one episode.
using ScriptedTurns = std::vector<std::vector<int32_t>>;

// Draws nothing: a sample's turns are script[its id], each cut where the request has room for no
// more. All else, as how it takes over weights, is the engine's that it stands in for. A turn is
// there with the next step. kInvalidArgument for one that the script does not have.
class ScriptedEngine final : public roles::ReplicaEngine {
 public:
  // What a generator says of each of its tokens: no model's number, so that a loss which looked at
  // it would show.
  static constexpr float kLogp = -1.0F;

  ScriptedEngine(const std::string& model, std::vector<ScriptedTurns> script)
      : ReplicaEngine(models::load_decoder(model, at::kFloat), models::Tokenizer::load(model),
                      models::EngineOptions{.num_blocks = 64}),
        script_(std::move(script)) {}

  uint64_t submit(const roles::GenerateRequest& request) override {
    ++last_;
    const int64_t* samples = request.sample_ids.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < request.sample_ids.numel(); ++i)
      waiting_.push_back(
          {.request = last_, .index = i, .completion = say(samples[i], request)});
    return last_;
  }
  bool step() override {
    const bool any = !waiting_.empty();
    finished_.insert(finished_.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
    return any;
  }
  std::vector<roles::FinishedSample> finished() override { return std::exchange(finished_, {}); }
  void cancel(uint64_t request) override {
    const auto is_of = [&](const roles::FinishedSample& sample) {
      return sample.request == request;
    };
    std::erase_if(waiting_, is_of);
    std::erase_if(finished_, is_of);
  }

 private:
  models::Completion say(int64_t sample, const roles::GenerateRequest& request) {
    size_t& turn = next_turn_[sample];
    if (request.continues == 0) turn = 0;
    const auto place = static_cast<size_t>(sample);
    if (place >= script_.size() || turn >= script_[place].size())
      throw Error(ErrorCode::kInvalidArgument, "the script has no such turn")
          .with("sample", sample)
          .with("turn", turn);
    models::Completion said{.token_ids = script_[place][turn++],
                            .finish_reason = models::FinishReason::kEos};

    const auto room = static_cast<size_t>(request.draw.max_new_tokens);
    const std::vector<int64_t>& ends = request.draw.eos_token_ids;
    const bool ended = std::find(ends.begin(), ends.end(), said.token_ids.back()) != ends.end();
    if (said.token_ids.size() > room || !ended) {
      RETORT_CHECK(said.token_ids.size() >= room) << "a turn without an end is too short to be cut";
      said.token_ids.resize(room);
      said.finish_reason = models::FinishReason::kLength;
    }
    said.logps.assign(said.token_ids.size(), kLogp);
    said.sampling_logps = said.logps;
    return said;
  }

  const std::vector<ScriptedTurns> script_;
  std::map<int64_t, size_t> next_turn_;  // of each sample
  uint64_t last_ = 0;                    // request
  std::vector<roles::FinishedSample> waiting_, finished_;
};

}  // namespace retort::test
