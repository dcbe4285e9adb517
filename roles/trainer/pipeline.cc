#include "roles/trainer/pipeline.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/pipeline_channel.h"
#include "parallel/pipeline_schedule.h"

namespace retort::roles {
namespace {

using parallel::PipelineAction;

// A micro-batch leaves this between its forward and its backward pass through a chunk.
struct Passage {
  at::Tensor input;   // undefined for the first chunk
  at::Tensor output;  // of the last chunk: the loss
};

// Returns the sizes of what travels between stages, in either direction.
std::vector<int64_t> residual_sizes(const models::Decoder& decoder,
                                    const models::PackedTokens& tokens) {
  return {decoder.residual_rows(tokens), decoder.config().hidden_size};
}

}  // namespace

Pipeline::Pipeline(const models::Decoder& decoder, parallel::Group& pp)
    : decoder_(decoder), pp_(pp) {
  if (pp.size() > 1) channel_ = std::make_unique<parallel::PipelineChannel>(pp);
}
Pipeline::~Pipeline() = default;

at::Tensor Pipeline::hidden(const models::PackedTokens& tokens) {
  if (!channel_) return decoder_.hidden(tokens);
  const c10::NoGradGuard no_grad;
  const models::Placement& place = decoder_.placement();
  at::Tensor final;
  for (const PipelineAction& action : parallel::pipeline_schedule({.pp = place.pp,
                                      .stage = place.stage,
                                      .virtual_pp = place.virtual_pp,
                                      .micro_batches = 1,
                                      .forward_only = true})) {
    // Stages pass the residual stream on as in training; the last chunk has the result.
    at::Tensor input;
    if (const auto from = parallel::pipeline_input(action, place.stage, place.pp, place.virtual_pp))
      input = channel_->recv(from->stage, from->label, residual_sizes(decoder_, tokens))
                  .to(decoder_.device());
    const at::Tensor output = decoder_.forward(action.chunk, tokens, input);

    if (const auto to = parallel::pipeline_output(action, place.stage, place.pp, place.virtual_pp))
      channel_->send(output, to->stage, to->label);
    else
      final = output;
  }
  channel_->flush();
  return final;
}

void Pipeline::run(const Step& step) {
  RETORT_CHECK(channel_ != nullptr) << "a pipeline of one stage has no schedule";
  const models::Placement& place = decoder_.placement();
  std::map<std::pair<int64_t, int64_t>, Passage> open;  // by chunk and micro-batch
  const auto count = static_cast<int64_t>(step.micro_batches);

  for (const PipelineAction& action : parallel::pipeline_schedule({.pp = place.pp,
                                      .stage = place.stage,
                                      .virtual_pp = place.virtual_pp,
                                      .micro_batches = count})) {
    const auto key = std::pair(action.chunk, action.micro_batch);
    const auto index = static_cast<size_t>(action.micro_batch);

    // A neighbour sends hidden states before a forward pass and the gradient by the chunk's output
    // before a backward pass. Nothing comes at the ends of the model.
    at::Tensor received;
    if (const auto from = parallel::pipeline_input(action, place.stage, place.pp, place.virtual_pp))
      received =
          channel_->recv(from->stage, from->label, residual_sizes(decoder_, step.tokens(index)))
              .to(decoder_.device());

    at::Tensor result;
    if (action.kind == PipelineAction::Kind::kForward) {
      if (received.defined()) received.set_requires_grad(true);
      result = decoder_.forward(action.chunk, step.tokens(index), received);
      if (place.last(action.chunk)) result = step.loss(index, result);
      open[key] = {received, result};
    } else {
      const Passage passage = std::move(open.extract(key).mapped());
      step.before_backward(action.micro_batch == count - 1);
      // Without a received gradient the output is the loss, whose gradient is 1. A stage before the
      // first layer that an adapter changes has nothing to train.
      if (passage.output.requires_grad()) torch::autograd::backward({passage.output}, {received});
      if (passage.input.defined()) result = passage.input.grad();
    }

    // The next stage gets the hidden states, the one before gets the gradient by the chunk's input.
    if (const auto to = parallel::pipeline_output(action, place.stage, place.pp, place.virtual_pp))
      channel_->send(result.detach(), to->stage, to->label);
  }
  channel_->flush();
}

}  // namespace retort::roles
