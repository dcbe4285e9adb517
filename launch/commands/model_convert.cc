// retort model convert: a checkpoint in another dtype or in other shards.
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/units.h"
#include "launch/commands/command_line.h"
#include "launch/commands/output_folder.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/rewrite_checkpoint.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct ModelConvertCommand {
  std::string model, output;
  std::string dtype;                    // bf16 | fp16 | fp32; "": as the checkpoint
  std::string max_shard_size = "5GiB";  // of the data of one file
};

int run_model_convert(const ModelConvertCommand& command) {
  models::RewriteOptions options{.config = models::read_model_config(command.model)};
  options.config.torch_dtype = file_dtype(command.dtype, options.config.torch_dtype);
  options.max_shard_bytes = parse_byte_size(command.max_shard_size).bytes;
  if (options.max_shard_bytes == 0)
    throw Error(ErrorCode::kInvalidArgument, "--max-shard-size must be positive");

  prepare_output_folder(command.output);
  write_folder_atomically(command.output, [&](const fs::path& folder) {
    models::copy_tokenizer_files(command.model, folder);
    models::rewrite_checkpoint(command.model, folder, options);
  });
  std::printf("%s\n", JsonLine()
                          .add("output", std::string_view(command.output))
                          .add("dtype", std::string_view(options.config.torch_dtype))
                          .add("num_parameters", options.config.num_parameters())
                          .str()
                          .c_str());
  return 0;
}

}  // namespace

void add_model_convert(Command model) {
  Command c = model.command("convert", "a checkpoint in another dtype or other shards");
  ModelConvertCommand& o = c.runs(run_model_convert);
  c.option("model", o.model, "Hugging Face folder").required();
  c.option("--output", o.output, "folder to write").required();
  c.option("--dtype", o.dtype, "bf16 | fp16 | fp32 (default: as the checkpoint)");
  c.option("--max-shard-size", o.max_shard_size, "of the weights in one file").shows_default();
}

}  // namespace retort::launch
