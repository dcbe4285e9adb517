// A model folder written once more: in another dtype, in other shards, with tensors changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "models/config/config.h"

namespace retort::models {

struct RewriteOptions {
  ModelConfig config;  // of what is written; config.torch_dtype says in which dtype
  uint64_t max_shard_bytes = uint64_t{5} << 30;  // of data in one file
  // Makes the tensor that is written, in the shape that `config` asks for, of the one that is read;
  // empty: it is the same. Names are those of the files.
  std::function<at::Tensor(const std::string& name, const at::Tensor& read)> change = {};
};

// Weights and config.json of `source` into `folder`, which must exist; no tokenizer
// (copy_tokenizer_files). A second copy of a tied head is left out.
// Memory: one tensor at a time.
// Errors: as load_decoder; kInvalidArgument naming the tensor for a finite number that the dtype
// has none for (float16 ends at 65504).
void rewrite_checkpoint(const std::filesystem::path& source, const std::filesystem::path& folder,
                        const RewriteOptions& options);

}  // namespace retort::models
