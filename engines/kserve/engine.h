// A model behind the KServe v2 protocol, as Triton and others speak it (docs/engines.md has the
// convention that its tensors keep).
#pragma once

#include <memory>
#include <string>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::engines::kserve {

// It scores, gives hidden states and rewards, by what the model has; it draws nothing. state() asks
// the server what that is: before its first success abilities() are none, and questions are
// kInvalidArgument.
// Memory: an answer is held once, as it came; what it may bring follows from the question:
//   R * 4 (given) + R * K * 8 (top-k) or R * H * sizeof(dtype), and a few KiB.
// load_weights(): `path` becomes the parameter `weights` of the model's configuration, with which
//   the model is unloaded and loaded. The server keeps nothing of a model that is not loaded.
// kInvalidArgument for options that cannot be, as make_engine (engines/make_engine.h).
std::unique_ptr<Engine> make_kserve(const ExternalOptions& options, const std::string& url,
                                    const std::string& key);

}  // namespace retort::engines::kserve
