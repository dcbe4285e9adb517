// retort model convert: a checkpoint in another dtype or in other shards.
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/units.h"
#include "launch/commands/commands.h"
#include "launch/commands/output_folder.h"
#include "models/checkpoint.h"
#include "models/rewrite_checkpoint.h"

namespace retort::launch {
namespace fs = std::filesystem;

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

}  // namespace retort::launch
