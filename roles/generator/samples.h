// How completions become what travels.
#pragma once

#include <vector>

#include "models/generation/request.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// Samples with the tensors of `completions`, in their order; what names the request and the
// generator is left to the caller.
Samples pack_completions(const std::vector<models::Completion>& completions);

}  // namespace retort::roles
