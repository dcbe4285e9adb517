// A router of llama.cpp (llama-server --models-dir) takes new weights from a file that is replaced.
// RETORT_LLAMA_SERVER names the program; the Python package of the other tests has no router.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/engines/llamacpp/real_server.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

namespace fs = std::filesystem;
using retort::test::expect_error;
using test::TinyModel, test::soon;

const std::vector<int32_t> kIds{10, 20, 30, 160, 47};

// "http://127.0.0.1:4711" at the end of the line that says so.
std::string listening_address(retort::test::ChildProcess& server) {
  for (;;) {
    const std::string line = server.read_line(soon());
    const size_t at = line.find("http://127.0.0.1:");
    if (line.find("listening") != std::string::npos && at != std::string::npos)
      return line.substr(at, line.find_first_not_of("0123456789", at + 17) - at);
  }
}

void expect_scores_of(const TinyModel& model, Engine& engine) {
  const Scored scored = engine.score({.token_ids = kIds, .positions = {1, 3}}, soon()).get();
  const at::Tensor ours = model.log_probs(kIds);
  EXPECT_NEAR(scored.given[0], model.log_prob_after(ours, 1, kIds[2]), 1e-4);
  EXPECT_NEAR(scored.given[1], model.log_prob_after(ours, 3, kIds[4]), 1e-4);
}

TEST(RealLlamaRouter, LoadsAFileThatWasReplaced) {
  const char* program = std::getenv("RETORT_LLAMA_SERVER");
  if (program == nullptr) GTEST_SKIP() << "RETORT_LLAMA_SERVER is not set";
  const TinyModel first(3);
  const TinyModel second(9);
  const retort::test::TemporaryFolder models;
  fs::copy_file(first.gguf(), models / "tiny.gguf");

  // Its log, where the port stands, goes to stderr.
  auto server = retort::test::ChildProcess::spawn(
      {.role = "",
       .args = {"-c",
                "exec \"$0\" --host 127.0.0.1 --port 0 --models-dir \"$1\" --models-max 1 "
                "--ctx-size 512 --parallel 1 --threads 1 --no-warmup --cache-type-k f32 "
                "--cache-type-v f32 --flash-attn off 2>&1",
                program, models.path()},
       .env = {},
       .program = "/bin/sh"});
  ExternalOptions options{.engine = EngineKind::kLlamacpp, .served_model = "tiny"};
  options.url = {listening_address(server)};
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
