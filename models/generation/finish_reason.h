// When a completion ends. Private to models/.
#pragma once

#include <optional>

#include "models/generation/scheduler.h"

namespace retort::models {

// Why the sequence ends with its newest token; nothing when it goes on. An end token comes before a
// stop token, that before a stop string, a stop string before the length. `detokenizer` is used for
// stop strings only.
std::optional<FinishReason> finish_reason_of(const Sequence& sequence,
                                             const Detokenizer& detokenizer);

}  // namespace retort::models
