// A llama.cpp server on a model of ours, and what we compute with the same model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "models/loaded_model.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace retort::engines::test {

// Bounds a hang; no test gets that far.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(120)); }

// A Llama of three layers with random weights and a tokenizer of all bytes, in f32.
class TinyModel {
 public:
  explicit TinyModel(int seed = 3);

  const models::LoadedModel& loaded() const { return *loaded_; }
  const models::Decoder& decoder() const { return loaded_->decoder; }
  int64_t vocab_rows() const { return decoder().config().vocab_size; }
  std::filesystem::path folder() const { return files_ / "model"; }
  std::filesystem::path gguf() const { return files_ / "model.gguf"; }
  // Writes gguf() from the checkpoint in `folder`.
  void export_gguf(const std::filesystem::path& folder) const;
  // Writes gguf() with one parameter full of `value`.
  void fill(const std::string& parameter, double value);

  // fp64 log-probabilities [N, V], row p of the token after token p.
  at::Tensor log_probs(const std::vector<int32_t>& ids) const;
  double log_prob_after(const at::Tensor& rows, size_t position, int32_t id) const;

 private:
  retort::test::TemporaryFolder files_;
  std::unique_ptr<models::LoadedModel> loaded_;
};

// The Python that has xllamacpp; nullopt: such tests are skipped.
std::optional<std::string> engines_python();

class RealServer {
 public:
  RealServer(const std::filesystem::path& gguf, std::vector<std::string> options = {});

  const std::string& url() const { return url_; }
  ExternalOptions options() const;
  std::unique_ptr<Engine> engine() const;
  // Opens the file anew.
  void reload();

 private:
  retort::test::ChildProcess process_;
  std::string url_;
};

// A llama-server, which the Python package does not have; nullopt: such tests are skipped.
std::optional<std::string> router_program();

// Runs as a router over a folder of GGUF files (llama-server --models-dir), of `context` tokens
// each.
class RealRouter {
 public:
  RealRouter(const std::filesystem::path& models, int64_t context);

  const std::string& url() const { return url_; }

 private:
  retort::test::TemporaryFolder files_;
  retort::test::ChildProcess process_;
  std::string url_;
};

}  // namespace retort::engines::test
