// retort model export: a checkpoint in the format of another program.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_text.h"
#include "launch/commands/command_line.h"
#include "models/gguf/export_gguf.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct ModelExportCommand {
  std::string model, output;  // output: a file
  std::string format = "gguf";
  std::string dtype;           // f32 | f16 | bf16 | q8_0; "": as the checkpoint
  int64_t context_length = 0;  // 0: max_position_embeddings
};

int run_model_export(const ModelExportCommand& command) {
  if (command.format != "gguf")
    throw Error(ErrorCode::kInvalidArgument,
                "--format '" + command.format + "' is not known; the only one is gguf");
  if (command.context_length < 0)
    throw Error(ErrorCode::kInvalidArgument, "--context-length must not be negative");
  if (fs::is_directory(command.output))
    throw Error(ErrorCode::kInvalidArgument,
                "--output '" + command.output + "' is a folder, expected the name of a file");

  const models::GgufExportOptions options{.dtype = command.dtype.empty()
                                                       ? models::gguf_dtype_of(command.model)
                                                       : models::parse_gguf_dtype(command.dtype),
                                          .context_length = command.context_length};
  if (const auto parent = fs::path(command.output).parent_path(); !parent.empty())
    fs::create_directories(parent);
  const models::GgufSummary summary = models::export_gguf(command.model, command.output, options);
  std::printf("%s\n", JsonLine()
                          .add("output", std::string_view(command.output))
                          .add("architecture", std::string_view(summary.architecture))
                          .add("num_tensors", summary.num_tensors)
                          .add("num_bytes", static_cast<int64_t>(summary.num_bytes))
                          .str()
                          .c_str());
  return 0;
}

}  // namespace

void add_model_export(Command model) {
  Command c = model.command("export", "a checkpoint as one file of llama.cpp's");
  ModelExportCommand& o = c.runs(run_model_export);
  c.option("model", o.model, "Hugging Face folder").required();
  c.option("--output", o.output, "file to write; replaced when it is complete").required();
  c.option("--format", o.format, "gguf").shows_default();
  c.option("--dtype", o.dtype, "of matrices: f32 | f16 | bf16 | q8_0 (default: as the checkpoint)");
  c.option("--context-length", o.context_length,
           "tokens of a sequence that the file admits; 0: max_position_embeddings");
}

}  // namespace retort::launch
