// Which part of a decoder this process holds: its slice of every layer (tensor parallel) and its
// run of layers (pipeline parallel).
#pragma once

#include <cstdint>
#include <utility>

#include "models/config/config.h"
#include "parallel/world.h"

namespace retort::models {

// kInvalidArgument naming the size of the model that a layout does not divide: attention heads,
// key/value heads, intermediate_size; more stages than layers.
void check_layout(const parallel::Layout& layout, const ModelConfig& config);

// Pipeline stages are counted from the embedding. The layers are cut into pp * virtual_pp runs of
// consecutive layers; where they do not divide evenly, the first runs get one layer more. A process
// has virtual_pp chunks: the runs stage, stage + pp, stage + 2 pp, ... (interleaved pipeline).
struct Placement {
  parallel::Group* tp = nullptr;  // null: not split
  bool sequence_parallel = false;
  int64_t pp = 1;
  int64_t stage = 0;
  int64_t virtual_pp = 1;  // chunks of this process

  static Placement of(parallel::World& world);
  int64_t tp_size() const { return tp == nullptr ? 1 : tp->size(); }
  int64_t tp_rank() const { return tp == nullptr ? 0 : tp->rank(); }
  // The chunk has the embedding.
  bool first(int64_t chunk = 0) const { return stage == 0 && chunk == 0; }
  // The chunk has the final norm and the head.
  bool last(int64_t chunk = 0) const { return stage == pp - 1 && chunk == virtual_pp - 1; }
  // The process has the whole model.
  bool whole() const { return tp_size() == 1 && pp == 1; }
  // Layers [first, second) of a chunk.
  std::pair<int64_t, int64_t> layers(int64_t num_layers, int64_t chunk) const;
  void validate(const ModelConfig& config) const;  // check_layout
};

}  // namespace retort::models
