// How completions become what travels, and what their receiver checks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// Samples with the tensors of `completions`, in their order; what names the request and the
// generator is left to the caller.
Samples pack_completions(const std::vector<models::Completion>& completions);

// The receiver's end: kMismatch when `samples` are not the answer of `generator` to `request`,
// kCorrupt when their tensors do not have the shapes, dtypes and values that it promises.
void check_samples(const Samples& samples, const GenerateRequest& request,
                   const std::string& generator, int64_t vocab_rows);

}  // namespace retort::roles
