// A whole run whose generator is a router of llama.cpp that nobody starts anew: each version is a
// file that takes the place of the last one.
#include <gtest/gtest.h>

#include "tests/engines/engine_run.h"
#include "tests/engines/llamacpp/real_server.h"

namespace retort::test {
namespace {

class LlamaRouterRunTest : public EngineRunTest {
 protected:
  static void SetUpTestSuite() {
    if (engines::test::router_program()) make_files();
  }
  static void TearDownTestSuite() { remove_files(); }
  void SetUp() override {
    if (!engines::test::router_program())
      GTEST_SKIP() << "RETORT_LLAMA_SERVER names no llama-server";
  }
};

TEST_F(LlamaRouterRunTest, GeneratorOfGrpoFollowsTheStudent) {
  // A router knows the files that were there when it began.
  const fs::path weights = file("weights");
  fs::create_directory(weights);
  must({"model", "export", file("model-2"), "--format", "gguf", "--output", weights / "tiny.gguf"});
  const engines::test::RealRouter router(weights, 128);

  const std::string generator =
      "external: {engine: llamacpp, url: ['" + router.url() +
      "'], served_model: tiny, timeout: 60s, load_timeout: 60s, tolerance: 1.0e-4, tokenizer: " +
      file("model-1") + ", weights: {via: gguf, canary_tokens: 48, folder: " + weights.string() +
      "}}";
  const fs::path run = launched("grpo", head("grpo", "generator", generator, "prompts.jsonl") +
                                            "generation: {num_generations: 4, max_new_tokens: 6}\n"
                                            "rewards: [{type: length, min: 2, max: 4}]\n"
                                            "grpo: {}\n");
  expect_receipts(run, 3);
  expect_own_log_probs(run);
}

}  // namespace
}  // namespace retort::test
