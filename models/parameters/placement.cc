#include "models/parameters/placement.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace retort::models {

Placement Placement::of(parallel::World& world) {
  const parallel::Layout& layout = world.options().layout;
  return {.tp = world.tp().size() > 1 ? &world.tp() : nullptr,
          .sequence_parallel = layout.sequence_parallel,
          .pp = layout.pp,
          .stage = world.coordinate().pp,
          .virtual_pp = layout.virtual_pp};
}

std::pair<int64_t, int64_t> Placement::layers(int64_t num_layers, int64_t chunk) const {
  const int64_t runs = pp * virtual_pp;
  const int64_t run = chunk * pp + stage;
  const int64_t each = num_layers / runs;
  const int64_t longer = num_layers % runs;
  const auto begin = [&](int64_t r) { return r * each + std::min(r, longer); };
  return {begin(run), begin(run + 1)};
}

void Placement::validate(const ModelConfig& config) const {
  check_layout({.tp = tp_size(), .pp = pp, .virtual_pp = virtual_pp}, config);
}

void check_layout(const parallel::Layout& layout, const ModelConfig& config) {
  // In tensor parallelism each rank takes as many heads and as much of the MLP as the others.
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "world.tp " + std::to_string(layout.tp) + " " + what);
  };
  const auto divides = [&](int64_t value, const char* name) {
    if (value % layout.tp != 0)
      refuse("does not divide " + std::string(name) + " " + std::to_string(value) +
             " of the model");
  };
  divides(config.num_attention_heads, "num_attention_heads");
  divides(config.intermediate_size, "intermediate_size");
  const int64_t kv = config.num_key_value_heads;
  if (kv % layout.tp != 0 && layout.tp % kv != 0)
    refuse("and num_key_value_heads " + std::to_string(kv) +
           " of the model: one must be a multiple of the other");

  // In pipeline parallelism no stage may be without a layer.
  if (config.num_hidden_layers < layout.pp * layout.virtual_pp)
    throw Error(
        ErrorCode::kInvalidArgument,
        "world.pp " + std::to_string(layout.pp) +
            (layout.virtual_pp > 1 ? " times virtual_pp " + std::to_string(layout.virtual_pp)
                                   : "") +
            " asks for more stages than the model has layers: " +
            std::to_string(config.num_hidden_layers));
}

}  // namespace retort::models
