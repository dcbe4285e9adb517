// What a training step holds on one rank, from sizes alone: no process, no tensor.
#pragma once

#include <cstdint>
#include <optional>

#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "parallel/layout.h"

namespace retort::models {

// What the loss of a micro-batch holds beside the model's own.
struct LossSizes {
  // Gradients of the head and of the hidden rows that are formed in forward and kept, in fp32 and
  // in the weights' dtype, until backward: one, or one for each teacher and one more.
  int64_t parts = 1;
  int64_t teacher_heads = 0;          // bytes of heads of teachers, all the time
  int64_t widened_teacher_heads = 0;  // elements of those that are in fp32 at one time
  int64_t teacher_dtype_bytes = 4;    // of theirs
  int64_t answers = 0;                // bytes of payloads that have arrived and are not used up
  // Of a chunk's size, where the softmax is made of operators: a split vocabulary, a device.
  int64_t operator_buffers = 4;
  int64_t logits_bytes = 16 << 20;  // at most, of the chunk of logits formed at once, on the CPU
  // At most, of gradients by logits that a loss of log-probabilities keeps for backward, where the
  // vocabulary is whole and on the CPU; the chunks that are kept are no others than those.
  int64_t kept_logits_bytes = 0;
  // Bytes that are there once before the loss and gone in it: the student finds the ids that it
  // names to its teachers.
  int64_t naming = 0;
};

struct TrainingSizes {
  parallel::Layout layout;
  int64_t stage = 0;          // pipeline coordinate
  int64_t tokens = 0;         // of a micro-batch on one dp rank
  int64_t micro_batches = 1;  // of a step
  int64_t dtype_bytes = 4;    // of weights and activations
  bool float16 = false;       // they are, whose dH waits for the loss scale in fp32
  bool gradient_checkpointing = false;
  int64_t gradient_checkpointing_every = 1;  // Decoder::set_gradient_checkpointing
  int64_t bucket_bytes = 40 << 20;           // of gradients, as Trainer::Options
  // For the masks of windows and of pairs: the sequences of a micro-batch, each of tokens /
  // sequences, and whether the second half of each is a fork (Fork) of the first.
  int64_t sequences = 1;
  bool forks = false;
  // The adapter that is trained in the place of the model; nullopt: the model is.
  std::optional<LoraConfig> lora;
  bool first_adapter =
      false;  // beside it lies a copy of what it was (Decoder::attach_first_adapter)
  LossSizes loss;
};

// Bytes of tensors on a rank of the stage: that with tp coordinate 0, which holds the largest part
// of the vocabulary.
struct TrainingMemory {
  // All the time: P local parameters, T of which are trained: all, or those of an adapter, which
  // come to the model's.
  int64_t parameters = 0;  // P * dtype_bytes; (P + T) * dtype_bytes with a first_adapter
  int64_t gradients = 0;   // T * 4: the accumulated sums
  // T * 8, and beside parameters of 2 bytes T * 12; with the distributed optimizer 1 / dp of that
  int64_t optimizer = 0;
  int64_t answers = 0;  // teachers' heads, and payloads that have arrived
  // Between forward and backward, for each micro-batch in flight: layer_bytes of every layer, or
  // where a layer is computed again its input only; the rotary table, masks, the final norm.
  int64_t activations = 0;
  // The most that is there besides at one time: the loss with its chunk of logits, dH and dW; the
  // backward pass of a layer (and its activations, computed again); what sharded reductions
  // receive.
  int64_t temporary = 0;
  int64_t layer_bytes = 0;  // what one layer keeps of a micro-batch without checkpointing

  int64_t always() const { return parameters + gradients + optimizer + answers; }
  int64_t peak() const { return always() + activations + temporary; }
};

// The formulas, for b bytes a number, R rows of a micro-batch (R' of the residual stream, less with
// sequence_parallel), H hidden and I inner size, q and kv the width of queries and keys, all of the
// rank's slice.
//
// A layer keeps, in float32 on the CPU, where norms, swiglu and attention are nodes of their own:
//   4 (R' (4 H + 2) + R (2 q + 2 kv + heads + 3 I)), with head norms 4 R (q + kv + heads + kv
//   heads) more.
// Elsewhere, made of operators: each of two norms its input in fp32, that times 1 / rms and the
// result; cos and sin in the weights' dtype for q and for k, q, k, v, the attention's output twice
// (as heads and as rows) and its log-sums; gate, silu(gate), up and the product:
//   R' (2 H (4 + 2 b) + 8) + R (b (3 q + 2 kv + 4 I) + 4 heads + (b < 4 ? 2 b head_dim : 0)), with
//   head norms R ((4 + b) (q + kv) + 4 (heads + kv heads)) more.
// On CUDA a norm without offset is one kernel, which keeps its input: b where 4 + b stands here.
//
// Norms behind attention and MLP (Gemma) keep their input and, of operators, that times 1 / rms,
// which with an offset is fp32; capped scores (Gemma 2), which are formed whole, 8 heads bytes for
// each token and token of its sequence.
// A classifier reads one row of each sequence and branch: behind its last attention no others go
// on, and that layer and the final norm keep what they keep of those alone.
// An adapter has r * (in + out) elements for each adapted matrix of the slice, and each keeps
// x A^T of a micro-batch besides: R r b. Layers keep what the one with most of them does.
// Its dropout makes R (2 b + 1) max(H, I) for the time of a product. dW of the head is not formed
// then.
//
// The loss: hidden states, the rows with a target among them, and for each part dH (in float16 of 4
// bytes) and dW (4 V H); beside weights of 2 bytes W in fp32 (and a teacher's head), a chunk of
// logits. Where a vocabulary is split or lies on a device, its softmax is made of operators and
// takes the chunk operator_buffers times; on a device it is of 512 MiB, and in bfloat16 half a
// chunk stands for W in fp32.
//
// Measured on the CPU in float32 and bfloat16 (tests/recipes/loop/step_memory_test.cc: whole steps
// of sft, dpo, kto, grpo, reward_model and distill within 10 %; docs/parallel.md: layouts). Devices
// by formula alone. kInvalidArgument as check_layout, or for a stage that is not there.
TrainingMemory estimate_training_memory(const ModelConfig& config, const TrainingSizes& sizes);

// Bytes that a forward pass without gradients holds at one time beside the weights: the rotary
// table and masks, eight rows of the residual stream, and gate, up and their product (of operators
// silu(gate) as well). On one stage; of `sizes` what says how many rows there are, and of what.
int64_t estimate_forward_memory(const ModelConfig& config, const TrainingSizes& sizes);

}  // namespace retort::models
