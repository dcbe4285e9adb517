#include "models/checkpoint/rewrite_checkpoint.h"

#include <ATen/ops/isfinite.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_check.h"
#include "models/checkpoint/stored_parameters.h"
#include "models/safetensors/safetensors.h"
#include "models/safetensors/writer.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

at::Tensor converted(const std::string& name, const at::Tensor& value, at::ScalarType dtype) {
  if (!at::isFloatingType(value.scalar_type()))
    throw Error(ErrorCode::kInvalidArgument, "tensor '" + name + "' holds " +
                                                 c10::toString(value.scalar_type()) +
                                                 ", expected floating-point numbers")
        .with("tensor", name);
  const at::Tensor out = value.to(dtype).contiguous();
  // A number beyond the range of the new dtype would become infinite, and the model useless.
  const bool lost =
      at::isfinite(out).logical_not().logical_and(at::isfinite(value)).any().item<bool>();
  if (lost)
    throw Error(ErrorCode::kInvalidArgument, "tensor '" + name + "' has numbers that " +
                                                 dtype_name(dtype) +
                                                 " cannot hold; choose bfloat16 or float32")
        .with("tensor", name);
  return out;
}

}  // namespace

void rewrite_checkpoint(const fs::path& source, const fs::path& folder,
                        const RewriteOptions& options) {
  const SafetensorsReader reader = open_checkpoint(read_model_config(source), source);
  const at::ScalarType dtype = parse_dtype(options.config.torch_dtype);

  // Everything is laid out before the first tensor is read, so that one tensor at a time is held.
  const std::vector<TensorInfo> infos = checkpoint_infos(options.config, dtype);
  const SafetensorsFiles files =
      SafetensorsFiles::model(infos, {.max_shard_bytes = options.max_shard_bytes});
  create_safetensors(folder, files);
  SafetensorsSliceWriter writer(folder, files);
  for (const TensorInfo& info : infos) {
    const at::Tensor read = reader.get(info.name);
    const at::Tensor value = options.change ? options.change(info.name, read) : read;
    writer.write(whole_piece(info.name, converted(info.name, value, dtype)));
  }
  writer.finish();
  write_file_atomically(folder / "config.json", write_model_config(options.config));
}

}  // namespace retort::models
