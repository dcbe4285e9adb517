// The hidden states of the text, against the local copy's.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "engines/probing/local_copy.h"
#include "engines/probing/session.h"

namespace retort::engines {

void ask_hidden_states(ProbeSession& session) {
  Contract& contract = session.contract;
  ScoreRequest request = session.text_request();
  request.top_k = 0;
  const at::Tensor states =
      session.ask.hidden_states("hidden states of the text", request).to(at::kFloat);
  contract.hidden_size = states.size(1);
  if (!session.subject.local) return;

  const at::Tensor own = hidden_locally(*session.subject.local, request).to(at::kFloat);
  if (own.size(1) != states.size(1))
    throw Error(ErrorCode::kMismatch, "hidden states have width " + std::to_string(states.size(1)) +
                                          ", the local copy's " + std::to_string(own.size(1)) +
                                          "; serve the model of the local copy")
        .with("url", contract.url);
  // The difference is relative to the state's length, because hidden states have no scale of their
  // own.
  contract.hidden_difference = ((states - own).norm(2, 1) / own.norm(2, 1)).max().item<double>();
}

}  // namespace retort::engines
