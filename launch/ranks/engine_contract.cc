#include "launch/ranks/engine_contract.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "engines/contract/traits.h"
#include "engines/probing/probe.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/config.h"
#include "models/text/end_tokens.h"
#include "models/text/tokenizer.h"

namespace retort::launch {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestCopy = uintmax_t{4} << 30;

}  // namespace

uint64_t new_nonce() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(now.count()) ^ (static_cast<uint64_t>(::getpid()) << 48);
}

std::optional<models::Decoder> local_copy(const std::string& folder) {
  uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(folder))
    if (file.path().extension() == ".safetensors") bytes += file.file_size();
  if (bytes == 0 || bytes > kLargestCopy) return std::nullopt;
  models::Decoder decoder = models::load_decoder(folder, at::kFloat);
  decoder.set_requires_grad(false);
  return decoder;
}

engines::Contract probe_engine(engines::Engine& engine, const engines::ExternalOptions& options,
                               const std::string& url, const models::Decoder* local,
                               const engines::Needs& needs, Deadline deadline) {
  if (engines::traits_of(options.engine).words_alone)
    return engines::probe_words(engine, options.engine, url, deadline);
  const models::Tokenizer tokenizer = models::Tokenizer::load(options.tokenizer);
  const models::ModelConfig config = models::read_model_config(options.tokenizer);
  return engines::probe({.engine = engine,
                         .tokenizer = tokenizer,
                         .kind = options.engine,
                         .url = url,
                         .vocab_rows = config.vocab_size,
                         .end_tokens = models::end_token_ids(config, tokenizer),
                         .local = local},
                        {.sampling = needs.sampling,
                         .tolerance = options.tolerance,
                         .names_ids = needs.names_ids,
                         .nonce = new_nonce()},
                        deadline);
}

}  // namespace retort::launch
