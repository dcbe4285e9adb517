// Tensors between the stages of a pipeline, whose shapes need not be known beforehand: each goes
// behind a header with its label, dtype and sizes, so that a receiver makes room for exactly what
// comes, and notices a message that is not the one its schedule asks for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/group.h"
#include "parallel/pipeline_schedule.h"

namespace retort::parallel {

// Threads: compute. Not a collective: a send needs its receive on the other stage, nothing else.
// Messages of one kind (forward, backward) between two stages must be received in the order of
// their sends, as pipeline_schedule() has them; the two kinds are independent of each other. Uses
// the group's tags 1 to 4. Errors name the stage, the other stage, kind, chunk and micro-batch of
// the message; after one the channel and, unless it was kInvalidArgument, the group are unusable.
class PipelineChannel {
 public:
  static constexpr int64_t kSendsInFlight = 4;

  // `pp`: the group of the stages in order; must outlive the channel. At most `sends_in_flight`
  // messages of this stage wait for their receivers: kInvalidArgument if that is fewer than
  // kMinimumSendsInFlight, with which a schedule can deadlock.
  explicit PipelineChannel(Group& pp, int64_t sends_in_flight = kSendsInFlight);
  // Drops what nobody has taken: flush() first where all is well.
  ~PipelineChannel();
  PipelineChannel(const PipelineChannel&) = delete;
  PipelineChannel& operator=(const PipelineChannel&) = delete;

  // Posts a message for the action `label` of another stage: a tensor on the CPU of at most two
  // dimensions, any strides, floating-point, integral or bool. Returns at once, unless too many are
  // on their way: then when the oldest has been taken (kTimeout after the group's timeout). Shares
  // the memory of a contiguous tensor: nobody may write to it until flush().
  void send(const at::Tensor& tensor, int64_t to_stage, const PipelineAction& label);

  // Waits for the input of this stage's action `label` (kTimeout after the group's timeout). Given
  // `sizes` or `dtype`, the message must have them. The result is fresh, contiguous and outside of
  // autograd. kMismatch, naming both, when the message has another label, dtype or sizes; its
  // tensor is then not received.
  at::Tensor recv(int64_t from_stage, const PipelineAction& label,
                  const std::optional<std::vector<int64_t>>& sizes = std::nullopt,
                  std::optional<at::ScalarType> dtype = std::nullopt);

  // Waits until every message sent has been taken. At the end of a step.
  void flush();

  // Messages that this stage has sent and not yet waited for.
  int64_t in_flight() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
