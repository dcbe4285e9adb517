// How completions become what travels, and what their receiver checks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// One of a request's completions.
struct IndexedCompletion {
  int64_t index = 0;  // prompt by prompt, num_generations of each
  models::Completion completion;
};

// Counts the tokens of a completion that the model drew.
int64_t drawn_tokens(const models::Completion& completion);

// Samples with the tensors of `completions`, in their order; what names the request and the
// generator is left to the caller.
Samples pack_completions(std::span<const IndexedCompletion> completions);
// The other way round. `samples`: as check_samples takes them.
std::vector<IndexedCompletion> unpack_completions(const Samples& samples);

// What every answer to a request must be.
struct ExpectedSamples {
  uint64_t request_id = 0, weight_version = 0;
  std::string sequence_hash;
  int64_t completions = 0;     // of the whole request
  int64_t max_new_tokens = 0;  // of a completion
  int64_t vocab_rows = 0;
  bool episodes = false;  // a completion has a prompt of its own, and says what it came to
};
// `episode_tokens`: that an episode may have with its prompt, if the request is for such.
ExpectedSamples expected_samples(const GenerateRequest& request, int64_t vocab_rows,
                                 int64_t episode_tokens);

// The receiver's end: kMismatch when `samples` are not an answer of `generator` to the request, or
// have tokens of later weights; kCorrupt when their tensors do not have the shapes, dtypes and
// values that it promises. Computes nothing with LibTorch, so it may run on any thread.
void check_samples(const Samples& samples, const ExpectedSamples& expected,
                   const std::string& generator);

}  // namespace retort::roles
