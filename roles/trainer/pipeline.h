// Micro-batches through the stages of one model.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "models/decoder/decoder.h"
#include "parallel/group.h"

namespace retort::parallel {
class PipelineChannel;
}

namespace retort::roles {

// Threads: compute. Collectives: messages between neighbours on `pp` (every rank of it calls the
// same methods with the same tokens), and the decoder's on tp. Errors: the group's, with stage,
// chunk and micro-batch.
class Pipeline {
 public:
  // `decoder`: this rank's stage of the model; must outlive the pipeline, as must `pp`.
  Pipeline(const models::Decoder& decoder, parallel::Group& pp);
  ~Pipeline();

  // Final hidden states of `tokens` [N, H] where the pipeline ends, undefined elsewhere. One stage:
  // Decoder::hidden. More: no autograd.
  at::Tensor hidden(const models::PackedTokens& tokens);

  struct Step {
    size_t micro_batches = 0;
    std::function<const models::PackedTokens&(size_t)> tokens;
    // A scalar; called where the pipeline ends.
    std::function<at::Tensor(size_t, const at::Tensor& hidden)> loss;
    // Before each backward pass: whether it is the last that reaches the parameters of its chunk.
    std::function<void(bool last)> before_backward;
  };
  // Forward and backward passes in the order of parallel::pipeline_schedule. Needs at least two
  // stages. Keeps the inputs and the graphs of the micro-batches that are between their forward and
  // backward pass.
  void run(const Step& step);

 private:
  const models::Decoder& decoder_;
  parallel::Group& pp_;
  std::unique_ptr<parallel::PipelineChannel> channel_;
};

}  // namespace retort::roles
