// Decodes: a generator's answer: the archive, then the check of its label and tensors against the
//   request (roles/generator/samples.h).
// Holds: samples that are taken have the offsets and ids that the trainer indexes with.
#include "roles/generator/samples.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "rpc/archive.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::samples {
namespace {

using namespace roles;

constexpr int64_t kVocabRows = 100;

GenerateRequest request() {
  return {.request_id = 5,
          .prompt_ids = at::tensor({1, 2, 3}, at::kInt),
          .cu_seqlens = at::tensor({0, 3}, at::kInt),
          .num_generations = 2,
          .sample_ids = at::arange(2, at::kLong),
          .draw = {.max_new_tokens = 4}};
}

bool decode(std::string_view bytes) {
  const auto samples = rpc::from_bytes<Samples>(bytes);
  check_samples(samples, expected_samples(request(), kVocabRows), "generator/0");

  int64_t tokens = 0;
  for (const IndexedCompletion& one : unpack_completions(samples)) {
    expect(one.index >= 0 && one.index < 2, "a completion that was not asked for");
    expect(!enum_name(one.completion.finish_reason).empty(), "an unknown reason");
    tokens += static_cast<int64_t>(one.completion.token_ids.size());
    for (const auto* numbers : {&one.completion.logps, &one.completion.sampling_logps})
      expect(numbers->empty() || numbers->size() == one.completion.token_ids.size(),
             "log-probabilities of some tokens alone");
  }
  expect(tokens == samples.token_ids.numel(), "offsets do not end at the number of tokens");
  expect(rpc::to_bytes(samples) == bytes, "encoded again it has other bytes");
  return true;
}

std::vector<Seed> seeds() {
  const std::vector<IndexedCompletion> completions{
      {1, {.token_ids = {4, 99}, .logps = {-1, -2}, .sampling_logps = {-1, -2}}},
      {0,
       {.token_ids = {7},
        .logps = {-0.5},
        .sampling_logps = {0},
        .finish_reason = models::FinishReason::kEos}}};
  Samples samples = pack_completions(completions);
  samples.request_id = 5;
  samples.generator = "generator/0";
  samples.sequence_hash =
      sequence_hash(request().prompt_ids, request().cu_seqlens, at::empty({0}, at::kInt));
  return {{"samples", rpc::to_bytes(samples)}};
}

}  // namespace

Target target() { return {"samples", decode, seeds}; }

}  // namespace retort::fuzz::samples
