// A server in this process: a decoder of ours behind the interface of an engine. Tests make it lie.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/contract/engine.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/engine.h"
#include "models/ops/packed.h"
#include "roles/payload/payload.h"

namespace retort::engines {

class ModelEngine : public Engine {
 public:
  explicit ModelEngine(models::Decoder decoder) : decoder(std::move(decoder)) {}

  Abilities abilities() const override {
    return {.draws = true,
            .scores = true,
            .max_top_k = decoder.config().vocab_size,
            .hidden_states = true,
            .seeds = true,
            .max_named_ids = decoder.config().vocab_size};
  }
  Future<EngineState> state(Deadline) override {
    return ready([&] {
      return EngineState{.served_model = "model", .vocab_rows = decoder.config().vocab_size};
    });
  }

  Future<Drawn> draw(DrawRequest request, Deadline) override {
    return ready([&] {
      ++draws;
      if (before_draw) before_draw();
      models::GenerationRequest direct{.prompts = {request.prompt}, .draw = request.how};
      direct.draw.sampling.seed = request.seed;
      models::Completion one = models::Engine(decoder, {.num_blocks = 64}).run(direct).at(0);
      return Drawn{.token_ids = std::move(one.token_ids),
                   .log_probs = std::move(one.logps),
                   .finish_reason = one.finish_reason};
    });
  }

  Future<Scored> score(ScoreRequest request, Deadline) override {
    return ready([&] {
      if (before_score) before_score();
      const at::Tensor rows = hidden_of(request);
      const models::Head head = decoder.head();
      const auto asked = [&](roles::PayloadKind kind, const at::Tensor& targets) {
        return roles::make_payload(rows, head.weight, {.kind = kind, .top_k = request.top_k},
                                   targets, head.vocab);
      };

      std::vector<int64_t> targets;
      for (const int32_t position : request.positions)
        targets.push_back(request.token_ids.at(static_cast<size_t>(position) + 1));
      const at::Tensor given =
          asked(roles::PayloadKind::kTargetLogProbs, at::tensor(targets, at::kLong)).logps;
      Scored scored;
      scored.given.assign(given.const_data_ptr<float>(),
                          given.const_data_ptr<float>() + given.numel());
      if (request.top_k > 0) {
        const roles::Payload top = asked(roles::PayloadKind::kTopK, {});
        scored.ids = top.ids;
        scored.log_probs = top.logps;
      }
      if (lie) lie(scored);
      return scored;
    });
  }

  Future<at::Tensor> hidden_states(ScoreRequest request, Deadline) override {
    return ready([&] { return hidden_of(request); });
  }

  Future<at::Tensor> log_probs_at(ScoreRequest request, at::Tensor ids, Deadline) override {
    return ready([&] {
      ++named;
      const c10::InferenceMode inference;
      const at::Tensor logits = decoder.logits(hidden_of(request)).to(at::kFloat);
      return at::log_softmax(logits, 1).gather(1, ids.to(at::kLong));
    });
  }

  Future<Empty> load_weights(std::string path, Deadline) override {
    return ready([&] {
      ++loads;
      decoder = models::load_decoder(path, at::kFloat);
      if (after_load) after_load(decoder);
      return Empty{};
    });
  }

  models::Decoder decoder;
  int draws = 0, loads = 0, named = 0;
  std::function<void()> before_draw, before_score;  // may throw
  std::function<void(Scored&)> lie;
  std::function<void(models::Decoder&)> after_load;

 private:
  // A future that has what `work` returns or throws.
  template <class Work>
  static auto ready(const Work& work) -> Future<decltype(work())> {
    Promise<decltype(work())> promise;
    auto future = promise.future();
    try {
      promise.set_value(work());
    } catch (...) {
      promise.set_error(std::current_exception());
    }
    return future;
  }
  at::Tensor hidden_of(const ScoreRequest& request) const {
    const c10::InferenceMode inference;
    const at::Tensor hidden = decoder.hidden(models::pack_rows({request.token_ids}));
    return models::rows_at(hidden, at::tensor(request.positions, at::kInt).to(at::kLong));
  }
};

}  // namespace retort::engines
