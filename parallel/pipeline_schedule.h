// What each stage of a pipeline does in which order, as a list, and which messages it receives and
// sends. Pure functions: no process, no device.
//
// A model is cut into pp * virtual_pp runs of consecutive layers. Stage s has the runs s, s + pp,
// s + 2 pp, ...: its chunks 0, 1, 2, ... A micro-batch passes the runs in order, its gradient in
// reverse.
//
// The lists are correct for messages that are sent without waiting for the receiver (at least
// kMinimumSendsInFlight of them) and received in the order of the list. With sends that wait for
// their receiver both schedules deadlock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"

namespace retort::parallel {

// One forward or backward of one micro-batch through one chunk of a stage.
struct PipelineAction {
  enum class Kind : uint8_t { kForward, kBackward };
  Kind kind = Kind::kForward;
  int64_t chunk = 0;
  int64_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

// "forward of chunk 1, micro-batch 3"
std::string to_string(const PipelineAction& action);

struct PipelineOptions {
  int64_t pp = 1;
  int64_t stage = 0;
  int64_t virtual_pp = 1;  // chunks of each stage
  int64_t micro_batches = 1;
  // The same order without the backwards: for evaluation and for roles that do not train.
  bool forward_only = false;
};

// A stage must be able to have this many messages on their way at once: with fewer, stages can wait
// for each other forever.
inline constexpr int64_t kMinimumSendsInFlight = 2;

// The actions of a stage, in order: each (chunk, micro-batch) once forward and, after it, once
// backward.
//
// virtual_pp = 1: 1F1B, the schedule of PipeDream-Flush (Narayanan et al. 2021). First
// min(pp - stage - 1, M) forwards to warm up, then one forward and one backward in turn, then the
// backwards that are left. At most min(pp - stage, M) micro-batches are between their forward and
// their backward. A stage idles for (pp - 1) / M of the time that it works.
//
// virtual_pp = V > 1: the interleaved 1F1B of Megatron-LM (Narayanan et al. 2021). Micro-batches go
// through a chunk in groups of pp, then through the next chunk. The warm-up is
// min(2 (pp - stage - 1) + (V - 1) pp, M V) forwards; at most one more is between forward and
// backward, each with 1/V of the stage's layers. A stage idles for (pp - 1) / (M V) of the time
// that it works, if M is a multiple of pp; a last group that is incomplete takes about as long as a
// complete one. M = pp has no rule of its own, as it has in Megatron-LM: where sends do not wait,
// it would only cost memory.
//
// Errors: kInvalidArgument for sizes below one, a stage outside, virtual_pp > 1 without a pipeline.
std::vector<PipelineAction> pipeline_schedule(const PipelineOptions& options);

// A chunk of a stage: one of the pp * virtual_pp runs of layers.
struct PipelinePeer {
  int64_t stage = 0;
  int64_t chunk = 0;
  bool operator==(const PipelinePeer&) const = default;
};

// The run of layers before this one, towards the embedding; none before the first.
std::optional<PipelinePeer> previous_chunk(const PipelinePeer& here, int64_t pp);
// The run of layers after this one, towards the head; none after the last.
std::optional<PipelinePeer> next_chunk(const PipelinePeer& here, int64_t pp, int64_t virtual_pp);

// A message between two stages. Its label is the *receiver's* action, whose input it is.
struct PipelineMessage {
  int64_t stage = 0;  // the other end: sender of an input, receiver of an output
  PipelineAction label;
  bool operator==(const PipelineMessage&) const = default;
};

// What an action of `stage` must receive first: the hidden states of the run before (forward), or
// the gradient by its own output from the run after it (backward); nothing at the ends of the
// model. The label is the action itself.
std::optional<PipelineMessage> pipeline_input(const PipelineAction& action, int64_t stage,
                                              int64_t pp, int64_t virtual_pp);
// What an action of `stage` must send afterwards: its hidden states to the run after it, or the
// gradient by its input to the run before.
std::optional<PipelineMessage> pipeline_output(const PipelineAction& action, int64_t stage,
                                               int64_t pp, int64_t virtual_pp);

}  // namespace retort::parallel

template <>
struct retort::EnumNames<retort::parallel::PipelineAction::Kind> {
  using Kind = retort::parallel::PipelineAction::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 2> values{
      {{"forward", Kind::kForward}, {"backward", Kind::kBackward}}};
};
