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

// This stage's end of the messages between it and the others. Messages of one kind (forward,
// backward) between two stages must be received in the order of their sends, as pipeline_schedule()
// has them; the two kinds are independent of each other.
//
// Collectives: none. A send needs its receive on the other stage, nothing else. The channel uses
//   the group's tags 1 to 4.
// Errors: they name the stage, the other stage, kind, chunk and micro-batch of the message. After
//   one the channel is unusable and, unless it was kInvalidArgument, so is the group.
// Threads: compute.
class PipelineChannel {
 public:
  static constexpr int64_t kSendsInFlight = 4;

  // `pp`: the group of the stages in order; it must outlive the channel. At most `sends_in_flight`
  // messages of this stage wait for their receivers. Fewer than kMinimumSendsInFlight are
  // kInvalidArgument: a schedule could deadlock.
  explicit PipelineChannel(Group& pp, int64_t sends_in_flight = kSendsInFlight);
  // Drops what nobody has taken; where all is well, call flush() first.
  ~PipelineChannel();
  PipelineChannel(const PipelineChannel&) = delete;
  PipelineChannel& operator=(const PipelineChannel&) = delete;

  // Posts a message for the action `label` of another stage: a tensor of at most two dimensions,
  // any strides, floating-point, integral or bool; one on a device is copied to the host. Returns
  // at once, unless too many messages are on their way: then it waits until the oldest has been
  // taken (kTimeout after the group's timeout). It shares the memory of a contiguous tensor on the
  // CPU: nobody may write to that until flush().
  void send(const at::Tensor& tensor, int64_t to_stage, const PipelineAction& label);

  // Waits for the input of this stage's action `label` (kTimeout after the group's timeout). Given
  // `sizes` or `dtype`, the message must have them. The result is fresh, contiguous and outside of
  // autograd. kMismatch, naming both, when the message has another label, dtype or sizes; its
  // tensor is then not received.
  at::Tensor recv(int64_t from_stage, const PipelineAction& label,
                  const std::optional<std::vector<int64_t>>& sizes = std::nullopt,
                  std::optional<at::ScalarType> dtype = std::nullopt);

  // Waits until every message sent has been taken. Call it at the end of a step.
  void flush();

  // Messages that this stage has sent and not yet waited for.
  int64_t in_flight() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
