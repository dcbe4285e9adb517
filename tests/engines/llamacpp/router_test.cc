// A router of llama.cpp takes new weights from a file that is replaced.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/engines/llamacpp/real_server.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

namespace fs = std::filesystem;
using retort::test::expect_error;
using test::RealRouter, test::TinyModel, test::soon;

const std::vector<int32_t> kIds{10, 20, 30, 160, 47};

void expect_scores_of(const TinyModel& model, Engine& engine) {
  const Scored scored = engine.score({.token_ids = kIds, .positions = {1, 3}}, soon()).get();
  const at::Tensor ours = model.log_probs(kIds);
  EXPECT_NEAR(scored.given[0], model.log_prob_after(ours, 1, kIds[2]), 1e-4);
  EXPECT_NEAR(scored.given[1], model.log_prob_after(ours, 3, kIds[4]), 1e-4);
}

TEST(RealLlamaRouter, LoadsAFileThatWasReplaced) {
  if (!test::router_program()) GTEST_SKIP() << "RETORT_LLAMA_SERVER names no llama-server";
  const TinyModel first(3);
  const TinyModel second(9);
  const retort::test::TemporaryFolder models;
  fs::copy_file(first.gguf(), models / "tiny.gguf");

  const RealRouter router(models.path(), 512);
  ExternalOptions options{.engine = EngineKind::kLlamacpp, .served_model = "tiny"};
  options.url = {router.url()};
  const auto engine = make_engine(options, options.url.front(), "");

  // The first question loads the model.
  const EngineState state = engine->state(soon()).get();
  EXPECT_EQ(state.served_model, "tiny");
  EXPECT_EQ(state.vocab_rows, first.vocab_rows());
  EXPECT_EQ(state.context_tokens, 512);
  expect_scores_of(first, *engine);

  fs::copy_file(second.gguf(), models / "next");
  fs::rename(models / "next", models / "tiny.gguf");
  engine->load_weights(models / "tiny.gguf", soon()).get();
  expect_scores_of(second, *engine);

  expect_error(ErrorCode::kMismatch, "tiny.gguf",
               [&] { engine->load_weights(models / "other.gguf", soon()).get(); });
  models.write("next", "no GGUF at all");
  fs::rename(models / "next", models / "tiny.gguf");
  expect_error(ErrorCode::kUnavailable, "could not load",
               [&] { engine->load_weights(models / "tiny.gguf", soon()).get(); });
}

}  // namespace
}  // namespace retort::engines
