#include "roles/trainer/state.h"

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/checkpoint/adapter.h"
#include "models/safetensors/safetensors.h"

namespace retort::roles {
namespace {

constexpr const char* kStateFile = "optimizer.safetensors";
constexpr const char* kScale = "loss_scale";
constexpr const char* kGoodSteps = "loss_scale_good_steps";

std::vector<models::TensorInfo> state_infos(const models::Decoder& decoder) {
  std::vector<models::TensorInfo> infos;
  for (const models::TensorInfo& parameter : models::trained_infos(decoder, at::kFloat)) {
    for (const char* what : {".exp_avg", ".exp_avg_sq", ".master"}) {
      if (what == std::string_view(".master") && decoder.dtype() == at::kFloat) continue;
      infos.push_back({parameter.name + what, at::kFloat, parameter.shape});
    }
  }
  return infos;
}

Error mismatch(const std::filesystem::path& file, const std::string& tensor,
               const std::string& what) {
  return Error(ErrorCode::kMismatch,
               file.string() + ": the optimizer state's '" + tensor + "' " + what)
      .with("tensor", tensor);
}

// All tensors of the model must be there and no others, whatever this rank reads of them.
void check_names(const models::SafetensorsReader& reader, const models::Decoder& decoder,
                 const std::filesystem::path& file) {
  std::set<std::string> expected;
  for (const models::TensorInfo& info : state_infos(decoder)) {
    expected.insert(info.name);
    if (!reader.contains(info.name))
      throw mismatch(file, info.name, "is missing; was it saved with other parameters or dtypes?");
    if (reader.shape(info.name) != info.shape)
      throw mismatch(file, info.name, "has another shape than its parameter");
    if (reader.dtype(info.name) != at::kFloat) throw mismatch(file, info.name, "is not float32");
  }
  for (const std::string& name : reader.names())
    if (!expected.contains(name)) throw mismatch(file, name, "belongs to no parameter here");
}

// A number of the metadata; nullopt if it is not there, kCorrupt if it is none.
template <class T>
std::optional<T> read_number(const models::SafetensorsReader& reader, const char* name,
                             const std::filesystem::path& file) {
  const auto found = reader.metadata().find(name);
  if (found == reader.metadata().end()) return std::nullopt;
  const std::string& text = found->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::kCorrupt,
                file.string() + ": '" + name + "' in its metadata is no number: '" + text + "'");
  return value;
}

int64_t read_step(const models::SafetensorsReader& reader, const std::filesystem::path& file) {
  const auto step = read_number<int64_t>(reader, "step", file);
  if (!step || *step < 0)
    throw Error(ErrorCode::kCorrupt, file.string() + " has no step in its metadata");
  return *step;
}

// Writes digits that read back as the same number.
std::string exact_text(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  RETORT_CHECK(error == std::errc()) << value;
  return {text, end};
}

void read_scale(parallel::LossScaler& scaler, const models::SafetensorsReader& reader,
                const std::filesystem::path& file) {
  const auto scale = read_number<double>(reader, kScale, file);
  const auto good_steps = read_number<int64_t>(reader, kGoodSteps, file);
  if (scale.has_value() != good_steps.has_value())
    throw Error(ErrorCode::kCorrupt, file.string() + " has half a loss scale in its metadata");
  if (scale) scaler.load_state({.scale = *scale, .good_steps = *good_steps});
}

}  // namespace

models::CheckpointPart optimizer_part(const parallel::AdamW& optimizer,
                                      const std::optional<parallel::LossScaler>& scaler,
                                      const models::Decoder& decoder, parallel::World& world) {
  std::map<std::string, std::string> metadata{{"step", std::to_string(optimizer.num_steps())}};
  if (scaler) {
    metadata[kScale] = exact_text(scaler->scale());
    metadata[kGoodSteps] = std::to_string(scaler->state().good_steps);
  }
  models::SafetensorsLayout layout(state_infos(decoder), metadata);
  models::CheckpointPart part{"", models::SafetensorsFiles::one(kStateFile, std::move(layout)), {}};
  // Without sharding every dp rank has the same state, so one of them writes it.
  if (world.options().layout.distributed_optimizer || world.coordinate().dp == 0)
    part.pieces = optimizer.state(/*counted_only=*/true);
  return part;
}

void load_optimizer(parallel::AdamW& optimizer, std::optional<parallel::LossScaler>& scaler,
                    const models::Decoder& decoder, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kStateFile;
  const models::SafetensorsReader reader(file);
  check_names(reader, decoder, file);
  const int64_t step = read_step(reader, file);

  // The scaler is replaced last, so that an error in what follows leaves it as it was.
  std::optional<parallel::LossScaler> read = scaler;
  if (read) read_scale(*read, reader, file);
  optimizer.load_state(step, [&](parallel::TensorPiece& piece) { reader.read_piece(piece); });
  scaler = read;
}

}  // namespace retort::roles
