// retort model export: a checkpoint in the format of another program.
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/json_text.h"
#include "launch/commands/commands.h"
#include "models/gguf/export_gguf.h"

namespace retort::launch {
namespace fs = std::filesystem;

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

}  // namespace retort::launch
