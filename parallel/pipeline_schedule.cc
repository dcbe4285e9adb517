#include "parallel/pipeline_schedule.h"

#include <algorithm>

#include "base/error.h"

namespace retort::parallel {
namespace {

using Kind = PipelineAction::Kind;

void validate(const PipelineOptions& o) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, what)
        .with("pp", o.pp)
        .with("stage", o.stage)
        .with("virtual_pp", o.virtual_pp)
        .with("micro_batches", o.micro_batches);
  };
  if (o.pp < 1 || o.virtual_pp < 1 || o.micro_batches < 1)
    refuse("a pipeline's pp, virtual_pp and micro_batches must be at least 1");
  if (o.stage < 0 || o.stage >= o.pp) refuse("the pipeline stage is outside of 0 .. pp - 1");
  if (o.virtual_pp > 1 && o.pp == 1)
    refuse("virtual_pp divides the stages of a pipeline: it needs pp > 1; set virtual_pp to 1");
}

// The k-th forward (or backward) of any stage. Micro-batches go in groups of pp, and each group
// through all chunks before the next group begins.
PipelineAction interleaved(Kind kind, int64_t k, int64_t pp, int64_t virtual_pp) {
  const int64_t turn = k / (pp * virtual_pp);
  const int64_t within = k % (pp * virtual_pp);
  const int64_t chunk = within / pp;
  return {kind, kind == Kind::kForward ? chunk : virtual_pp - 1 - chunk, turn * pp + within % pp};
}

}  // namespace

std::string to_string(const PipelineAction& action) {
  return std::string(enum_name(action.kind)) + " of chunk " + std::to_string(action.chunk) +
         ", micro-batch " + std::to_string(action.micro_batch);
}

std::vector<PipelineAction> pipeline_schedule(const PipelineOptions& options) {
  validate(options);
  const auto [pp, stage, virtual_pp, micro_batches, forward_only] = options;

  // An incomplete last group is made complete, and what does not exist is left out at the end: the
  // micro-batches do not wait for each other, so that leaving some out leaves an order that works.
  const bool one_chunk = virtual_pp == 1;
  const int64_t padded = one_chunk ? micro_batches : (micro_batches + pp - 1) / pp * pp;
  const int64_t total = padded * virtual_pp;
  const int64_t behind = pp - stage - 1;
  const int64_t warm_up = std::min(one_chunk ? behind : 2 * behind + (virtual_pp - 1) * pp, total);

  // The backwards run `warm_up` actions behind the forwards.
  std::vector<PipelineAction> actions;
  const auto add = [&](Kind kind, int64_t k) {
    const PipelineAction action = interleaved(kind, k, pp, virtual_pp);
    if (action.micro_batch < micro_batches && !(forward_only && kind == Kind::kBackward))
      actions.push_back(action);
  };
  for (int64_t k = 0; k < total + warm_up; ++k) {
    if (k < total) add(Kind::kForward, k);
    if (k >= warm_up) add(Kind::kBackward, k - warm_up);
  }
  return actions;
}

std::optional<PipelinePeer> previous_chunk(const PipelinePeer& here, int64_t pp) {
  const int64_t run = here.chunk * pp + here.stage - 1;
  if (run < 0) return std::nullopt;
  return PipelinePeer{run % pp, run / pp};
}

std::optional<PipelinePeer> next_chunk(const PipelinePeer& here, int64_t pp, int64_t virtual_pp) {
  const int64_t run = here.chunk * pp + here.stage + 1;
  if (run >= pp * virtual_pp) return std::nullopt;
  return PipelinePeer{run % pp, run / pp};
}

std::optional<PipelineMessage> pipeline_input(const PipelineAction& action, int64_t stage,
                                              int64_t pp, int64_t virtual_pp) {
  const PipelinePeer here{stage, action.chunk};
  const auto from =
      action.kind == Kind::kForward ? previous_chunk(here, pp) : next_chunk(here, pp, virtual_pp);
  if (!from) return std::nullopt;
  return PipelineMessage{from->stage, action};
}

std::optional<PipelineMessage> pipeline_output(const PipelineAction& action, int64_t stage,
                                               int64_t pp, int64_t virtual_pp) {
  const PipelinePeer here{stage, action.chunk};
  const auto to =
      action.kind == Kind::kForward ? next_chunk(here, pp, virtual_pp) : previous_chunk(here, pp);
  if (!to) return std::nullopt;
  return PipelineMessage{to->stage, {action.kind, to->chunk, action.micro_batch}};
}

}  // namespace retort::parallel
