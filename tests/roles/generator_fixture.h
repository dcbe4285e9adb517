// A generator behind a real agent, driven step by step by the test, and what the engine alone would
// draw.
#pragma once

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/engine.h"
#include "roles/generator/client.h"
#include "roles/generator/replica_engine.h"
#include "roles/generator/server.h"
#include "tests/support/source_folder.h"

namespace retort::roles {

using namespace std::chrono_literals;
using Prompts = std::vector<std::vector<int32_t>>;

inline std::string golden_model(const std::string& name = "qwen3") {
  return (test::source_folder() / "tests/recipes/goldens" / name).string();
}
inline models::Decoder golden_decoder() { return models::load_decoder(golden_model(), at::kFloat); }
// The golden model's shape with other weights.
inline models::Decoder other_decoder(uint64_t seed) {
  return models::Decoder::random(golden_decoder().config(), seed, at::kFloat);
}

inline GenerateRequest generate_request(uint64_t id, uint64_t version, const Prompts& prompts,
                                        int64_t generations = 2, int64_t max_new_tokens = 12) {
  std::vector<int32_t> ids, ends{0};
  for (const auto& prompt : prompts) {
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    ends.push_back(static_cast<int32_t>(ids.size()));
  }
  std::vector<int64_t> sample_ids;
  for (size_t i = 0; i < prompts.size() * static_cast<size_t>(generations); ++i)
    sample_ids.push_back(static_cast<int64_t>(100 * id + i));
  return {.request_id = id,
          .step = static_cast<int64_t>(id),
          .weight_version = version,
          .prompt_ids = at::tensor(ids, at::kInt),
          .cu_seqlens = at::tensor(ends, at::kInt),
          .num_generations = generations,
          .sample_ids = at::tensor(sample_ids, at::kLong),
          .draw = {.sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 5},
                   .max_new_tokens = max_new_tokens,
                   .eos_token_ids = {63},
                   .stop = {}}};
}

inline models::EngineOptions engine_options() { return {.num_blocks = 64}; }

// What the engine draws by itself for a request.
inline std::vector<models::Completion> drawn_alone(const models::Decoder& decoder,
                                                   const GenerateRequest& request,
                                                   const Prompts& prompts) {
  models::GenerationRequest direct;
  direct.prompts = prompts;
  direct.num_generations = request.num_generations;
  for (int64_t i = 0; i < request.sample_ids.numel(); ++i)
    direct.sample_ids.push_back(
        static_cast<uint64_t>(request.sample_ids.const_data_ptr<int64_t>()[i]));
  direct.draw = request.draw;
  return models::Engine(decoder, engine_options()).run(direct);
}

// Bit for bit.
inline void expect_drawn_by(const models::Decoder& decoder, const Samples& samples,
                            const GenerateRequest& request, const Prompts& prompts) {
  const auto expected = drawn_alone(decoder, request, prompts);
  const std::vector<IndexedCompletion> drawn = unpack_completions(samples);
  ASSERT_EQ(drawn.size(), expected.size());
  for (const auto& [index, completion] : drawn) {
    const models::Completion& same = expected.at(static_cast<size_t>(index));
    EXPECT_EQ(completion.token_ids, same.token_ids) << index;
    EXPECT_EQ(completion.logps, same.logps) << index;
    EXPECT_EQ(completion.sampling_logps, same.sampling_logps) << index;
    EXPECT_EQ(completion.finish_reason, same.finish_reason) << index;
  }
  EXPECT_EQ(samples.weight_version, request.weight_version);
  EXPECT_EQ(samples.request_id, request.request_id);
}

// With whatever it draws with.
class GeneratorServed : public ::testing::Test {
 protected:
  explicit GeneratorServed(std::unique_ptr<SampleBackend> backend)
      : generator("generator/0", std::move(backend)) {
    generator.serve(server, queue);
    client.connect("generator/0", server.address(), Deadline::after(30s));
  }
  ~GeneratorServed() override { queue->close(); }

  // Serves `calls` calls, which may still be on their way.
  void handle(size_t calls) {
    for (; calls > 0; --calls) {
      auto job = queue->pop(Deadline::after(30s));
      ASSERT_TRUE(job) << "a call did not arrive";
      (*job)();
    }
  }

  // Serves calls, and draws if `draw`, until `fn`, which runs beside it and waits for this
  // generator, is done.
  template <class Fn>
  auto beside(Fn fn, bool draw = true) {
    auto result = std::async(std::launch::async, std::move(fn));
    while (result.wait_for(0s) != std::future_status::ready) {
      if (auto job = queue->pop(Deadline::after(1ms))) (*job)();
      if (draw) generator.work();
    }
    return result.get();
  }
  void draw_all() {
    while (generator.work()) {
    }
  }

  Generator generator;
  std::shared_ptr<rpc::HandlerQueue> queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent server{{.name = "generator/0", .secret = "s"}};
  rpc::Agent client{{.name = "student/0", .secret = "s"}};
};

class GeneratorFixture : public GeneratorServed {
 protected:
  explicit GeneratorFixture(models::EngineOptions options = engine_options())
      : GeneratorFixture(new ReplicaEngine(golden_decoder(),
                                           models::Tokenizer::load(golden_model()), options)) {}

  std::unique_ptr<GeneratorClient> make_client(const models::Decoder& student, rpc::Agent& agent,
                                               const std::vector<std::string>& replicas = {
                                                   "generator/0"}) {
    const GeneratorClient::Options options{
        .role = "generator", .peers = replicas, .timeout = 30s, .generation_timeout = 60s};
    return beside([&] {
      return std::make_unique<GeneratorClient>(agent, options,
                                               models::Tokenizer::load(golden_model()), student);
    });
  }
  // Pushed and committed, but without drawing: not in use if anything is in work.
  PendingPush pushed(GeneratorClient& from, const models::Decoder& weights, uint64_t version,
                     bool abort) {
    constexpr int64_t kBucketBytes = 4096;
    PendingPush push =
        beside([&] { return from.push(weights, version, kBucketBytes, abort); }, false);
    while (engine.info().committed_version != version && generator.weight_version() != version)
      handle(1);
    return push;
  }
  // Sent, and standing in the queue with somebody waiting for it.
  PendingSamples queued(GeneratorClient& from, const GenerateRequest& request,
                        SampleListener listener = {}) {
    PendingSamples pending = from.send(request, std::move(listener));
    // Submit, whose answer brings collect, which may be here before its sender sees the answer.
    for (int handled = 0; handled < 2 || !pending.accepted.ready();)
      if (auto job = queue->pop(Deadline::after(1ms))) {
        (*job)();
        ++handled;
      }
    return pending;
  }
  // What was drawn already; the calls that fetch it are served meanwhile.
  Samples received(GeneratorClient& from, PendingSamples pending) {
    return beside([&] { return from.receive(std::move(pending)); }, /*draw=*/false);
  }

  ReplicaEngine& engine;
  const Prompts prompts{{1, 2, 3}, {9, 8, 7, 6, 5}, {40}};

 private:
  explicit GeneratorFixture(ReplicaEngine* backend)
      : GeneratorServed(std::unique_ptr<SampleBackend>(backend)), engine(*backend) {}
};

}  // namespace retort::roles
