// retort model merge: the weights of a model with an adapter added to them, as a folder of its own.
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "launch/commands/command_line.h"
#include "launch/commands/output_folder.h"
#include "models/checkpoint/adapter.h"
#include "models/checkpoint/checkpoint.h"
#include "models/decoder/merged_weights.h"
#include "recipes/run/inputs/student_model.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct ModelMergeCommand {
  std::string adapter, output;  // folders
  std::string base;             // "": what the adapter names
  std::string dtype;            // of the file that is written; "": as the base model's
};

int run_model_merge(const ModelMergeCommand& command) {
  if (!fs::is_regular_file(fs::path(command.adapter) / models::kAdapterConfigFile))
    throw Error(ErrorCode::kInvalidArgument, "'" + command.adapter + "' has no " +
                                                 models::kAdapterConfigFile +
                                                 "; expected the folder of a PEFT adapter");
  prepare_output_folder(command.output);
  // An adapter that brings a tokenizer was trained with that, which is copied instead of the
  // base's.
  const bool brings_tokenizer = fs::exists(fs::path(command.adapter) / "tokenizer.json");
  const fs::path base =
      command.base.empty() ? models::adapter_base_folder(command.adapter) : fs::path(command.base);

  // The adapter is added in fp32, and the sum is rounded once, to what the file that is written
  // has.
  const std::string dtype = file_dtype(command.dtype, models::read_model_config(base).torch_dtype);
  const at::ScalarType file_dtype = models::parse_dtype(dtype);
  const int64_t labels = models::adapter_labels(command.adapter);
  models::Decoder decoder =
      labels == 0
          ? models::load_decoder(base, at::kFloat)
          : models::load_classifier(base, at::kFloat,
                                    recipes::classifier_options(base.string(), labels, /*seed=*/0));
  models::attach_adapter(decoder, command.adapter);
  const models::LoraConfig lora = *decoder.lora();
  models::merge_adapter(decoder);

  write_folder_atomically(command.output, [&](const fs::path& folder) {
    models::save_decoder(decoder, file_dtype, base, folder);
    if (brings_tokenizer) models::copy_tokenizer_files(command.adapter, folder);
  });
  std::printf("%s\n", JsonLine()
                          .add("output", std::string_view(command.output))
                          .add("base", std::string_view(base.string()))
                          .add("r", lora.r)
                          .add("dtype", std::string_view(dtype))
                          .str()
                          .c_str());
  return 0;
}

}  // namespace

void add_model_merge(Command model) {
  Command c = model.command("merge", "an adapter added to its model's weights");
  ModelMergeCommand& o = c.runs(run_model_merge);
  c.option("adapter", o.adapter, "folder of a PEFT adapter (LoRA)").required();
  c.option("--output", o.output, "folder to write").required();
  c.option("--base", o.base,
           "Hugging Face folder of the model; default: what adapter_config.json names");
  c.option("--dtype", o.dtype, "bf16 | fp16 | fp32 (default: as the model's file)");
}

}  // namespace retort::launch
