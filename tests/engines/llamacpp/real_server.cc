#include "tests/engines/llamacpp/real_server.h"

#include <ATen/ops/log_softmax.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "engines/make_engine.h"
#include "models/checkpoint/checkpoint.h"
#include "models/ops/packed.h"
#include "tests/support/command.h"
#include "tests/support/source_folder.h"
#include "tests/support/wait_until.h"

namespace retort::engines::test {
namespace {

namespace fs = std::filesystem;

void retort_command(std::vector<std::string> arguments) {
  const char* program = std::getenv("RETORT_BIN");
  arguments.insert(arguments.begin(), program != nullptr ? program : "build/bin/retort");
  const retort::test::CommandResult result = retort::test::Command(arguments).wait();
  RETORT_CHECK(result.exit_code == 0) << result.output;
}

retort::test::ChildProcess start(const fs::path& gguf, std::vector<std::string> options) {
  const fs::path script = retort::test::source_folder() / "tests/engines/llama_server.py";
  std::vector<std::string> arguments{script, gguf};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return retort::test::ChildProcess::spawn(
      {.role = "", .args = std::move(arguments), .env = {}, .program = *engines_python()});
}

retort::test::ChildProcess start_router(const fs::path& models, int64_t context,
                                        const fs::path& log) {
  return retort::test::ChildProcess::spawn(
      {.role = "",
       .args = {"-c",
                "exec \"$0\" --host 127.0.0.1 --port 0 --models-dir \"$1\" --models-max 1 "
                "--ctx-size \"$2\" --parallel 1 --threads 1 --no-warmup --cache-type-k f32 "
                "--cache-type-v f32 --flash-attn off >\"$3\" 2>&1",
                router_program().value(), models, std::to_string(context), log},
       .env = {},
       .program = "/bin/sh"});
}

// "http://127.0.0.1:4711" at the end of the line of its log that says so; empty before.
std::string listening_address(const fs::path& log) {
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("http://127.0.0.1:");
    if (line.find("listening") == std::string::npos || at == std::string::npos || in.eof())
      continue;
    return line.substr(at, line.find_first_not_of("0123456789", at + 17) - at);
  }
  return "";
}

// The value of an environment variable; nullopt if it is unset or empty.
std::optional<std::string> named_by(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace

TinyModel::TinyModel(int seed) {
  // A tokenizer of its own, of texts that are made, so that nothing is downloaded.
  const std::string data = files_ / "data.jsonl";
  const std::string tokenizer = files_ / "tokenizer";
  retort_command({"data", "arithmetic", "--count", "300", "--output", data});
  retort_command(
      {"tokenizer", "train", "--data", data, "--vocab-size", "400", "--output", tokenizer});

  // Small enough for a test, with weights so far apart that tokens differ clearly in their scores.
  retort_command({"model",
                  "init",
                  "--arch",
                  "llama",
                  "--tokenizer",
                  tokenizer,
                  "--vocab-size",
                  "416",

                  "--hidden-size",
                  "64",
                  "--intermediate-size",
                  "96",
                  "--num-hidden-layers",
                  "3",

                  "--num-attention-heads",
                  "4",
                  "--num-key-value-heads",
                  "2",
                  "--head-dim",
                  "16",

                  "--initializer-range",
                  "0.2",
                  "--seed",
                  std::to_string(seed),
                  "--output",
                  folder()});

  // The server reads the one, and the tests compare it with the other.
  export_gguf(folder());
  loaded_ = std::make_unique<models::LoadedModel>(models::load_model(folder(), "float32"));
}

void TinyModel::export_gguf(const fs::path& folder) const {
  retort_command({"model", "export", "--format", "gguf", "--dtype", "f32", folder, "--output",
                  files_ / "new.gguf"});
  fs::rename(files_ / "new.gguf", gguf());
}

void TinyModel::fill(const std::string& parameter, double value) {
  for (const auto& [name, tensor, shard] : decoder().parameters())
    if (name == parameter) at::Tensor(tensor).fill_(value);
  const fs::path changed = files_ / "changed";
  fs::create_directory(changed);
  models::save_decoder(decoder(), at::kFloat, folder(), changed);
  export_gguf(changed);
}

at::Tensor TinyModel::log_probs(const std::vector<int32_t>& ids) const {
  const at::Tensor states = decoder().hidden(models::pack_rows({ids}));
  return at::log_softmax(decoder().logits(states).to(at::kDouble), -1);
}

double TinyModel::log_prob_after(const at::Tensor& rows, size_t position, int32_t id) const {
  return rows[static_cast<int64_t>(position)][id].item().toDouble();
}

std::optional<std::string> engines_python() { return named_by("RETORT_ENGINES_PYTHON"); }
std::optional<std::string> router_program() { return named_by("RETORT_LLAMA_SERVER"); }

RealServer::RealServer(const fs::path& gguf, std::vector<std::string> options)
    : process_(start(gguf, std::move(options))), url_(process_.read_line(soon())) {}

ExternalOptions RealServer::options() const {
  return {.engine = EngineKind::kLlamacpp, .url = {url_}};
}

std::unique_ptr<Engine> RealServer::engine() const { return make_engine(options(), url_, ""); }

void RealServer::reload() {
  process_.write_line("reload");
  const std::string again = process_.read_line(soon());
  RETORT_CHECK(again == url_) << again;
}

RealRouter::RealRouter(const fs::path& models, int64_t context)
    : process_(start_router(models, context, files_ / "log")) {
  const bool listens = retort::test::wait_until([&] {
    url_ = listening_address(files_ / "log");
    return !url_.empty() || !process_.running();
  });
  RETORT_CHECK(listens && !url_.empty()) << read_file(files_ / "log");
}

}  // namespace retort::engines::test
