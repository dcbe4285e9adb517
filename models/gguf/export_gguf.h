// A checkpoint as one GGUF file, which llama.cpp opens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace retort::models {

// The numbers of matrices. Norms and biases are always f32.
enum class GgufDtype { kF32, kF16, kBF16, kQ8_0 };
// f32 | f16 | bf16 | q8_0; kInvalidArgument for others.
GgufDtype parse_gguf_dtype(const std::string& name);
// The same as the weights of the checkpoint in `folder`, by its config.json.
GgufDtype gguf_dtype_of(const std::filesystem::path& folder);

struct GgufExportOptions {
  GgufDtype dtype = GgufDtype::kF32;
  // Tokens of a sequence that the file admits; 0: max_position_embeddings.
  int64_t context_length = 0;
};

struct GgufSummary {
  std::string architecture;  // llama.cpp's name of the model's graph
  int64_t num_tensors = 0;
  uint64_t num_bytes = 0;
};

// Writes `output` from the Hugging Face folder `model`: settings, tokenizer, tensors. An existing
// file is replaced when the new one is complete, so that a server may go on with the old one.
// Memory: no model: of each tensor at most one copy in the type of the file, and one more in the
// checkpoint's dtype where the rotary order differs (q_proj, k_proj of Llama and Mistral) or in f32
// for q8_0. The largest tensor is vocab_size * hidden_size numbers. Before that, the tokenizer
// (gguf_tokenizer.h).
// Errors: kInvalidArgument naming what llama.cpp cannot compute or store, before anything is
// written (numbers out of range: while it is); as load_decoder; kResourceExhausted, kUnavailable as
// AtomicFile.
GgufSummary export_gguf(const std::filesystem::path& model, const std::filesystem::path& output,
                        const GgufExportOptions& options = {});

}  // namespace retort::models
