#include "engines/served/served_info.h"

#include <algorithm>

#include "base/error.h"

namespace retort::engines {

roles::TeacherInfo served_info(const std::string& name, const models::Tokenizer& tokenizer,
                               const models::ModelConfig& config,
                               const roles::InfoRequest& request) {
  if (request.weights_fingerprint)
    throw Error(ErrorCode::kInvalidArgument,
                "an engine does not say which weights it serves, so that what it computed cannot "
                "be kept for other runs")
        .with("teacher", name);
  // Two tokenizers may differ in their number of ids; the fingerprint covers those that both have.
  const int64_t known = std::min(request.tokenizer_size, tokenizer.vocab_size());
  return {.name = name,
          .weight_version = kServedVersion,
          .vocab_rows = config.vocab_size,
          .tokenizer_size = tokenizer.vocab_size(),
          .hidden_size = config.hidden_size,
          .dtype = "float32",
          .vocabulary_fingerprint = tokenizer.vocabulary_fingerprint(known),
          .processing_fingerprint = tokenizer.processing_fingerprint(),
          .weights_fingerprint = "",
          .files = "",
          .tp = 1};
}

}  // namespace retort::engines
