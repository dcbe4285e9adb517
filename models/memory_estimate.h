// What a training step holds on one rank, from sizes alone: no process, no tensor.
#pragma once

#include <cstdint>

#include "models/config.h"
#include "parallel/layout.h"

namespace retort::models {

struct TrainingSizes {
  parallel::Layout layout;
  int64_t stage = 0;          // pipeline coordinate
  int64_t tokens = 0;         // of a micro-batch on one dp rank
  int64_t micro_batches = 1;  // of a step
  int64_t dtype_bytes = 4;    // of weights and activations
  bool gradient_checkpointing = false;
  int64_t gradient_checkpointing_every = 1;  // Decoder::set_gradient_checkpointing
  int64_t bucket_bytes = 40 << 20;           // of gradients, as Trainer::Options
  // at most, of the chunk of logits that a loss forms at once
  int64_t logits_bytes = 16 << 20;
};

// Bytes of tensors on a rank of the stage: that with tp coordinate 0, which holds the largest part
// of the vocabulary.
struct TrainingMemory {
  // All the time: P local parameters.
  int64_t parameters = 0;  // P * dtype_bytes
  int64_t gradients = 0;   // P * 4: the accumulated sums
  // P * 8, and beside parameters of 2 bytes P * 12; with the distributed optimizer 1 / dp of that
  int64_t optimizer = 0;
  // Between forward and backward, for each micro-batch in flight: layer_bytes of every layer, or
  // where a layer is computed again its input only.
  int64_t activations = 0;
  // The most that is there besides at one time: the loss with its chunk of logits, dH and dW; the
  // backward pass of a layer (and its activations, computed again); what sharded reductions
  // receive.
  int64_t temporary = 0;
  int64_t layer_bytes = 0;  // what one layer keeps of a micro-batch without checkpointing

  int64_t always() const { return parameters + gradients + optimizer; }
  int64_t peak() const { return always() + activations + temporary; }
};

// For cross-entropy in float32 on the CPU, where it was measured (docs/parallel.md); for other
// losses, dtypes and devices a lower bound, as they keep more of a norm, of the rotary embedding
// and of a loss. kInvalidArgument as check_layout, or for a stage that is not there.
TrainingMemory estimate_training_memory(const ModelConfig& config, const TrainingSizes& sizes);

}  // namespace retort::models
