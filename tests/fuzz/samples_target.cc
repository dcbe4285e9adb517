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
constexpr int64_t kEpisodeTokens = 8;

GenerateRequest request() {
  return {.request_id = 5,
          .weight_version = 3,
          .prompt_ids = at::tensor({1, 2, 3}, at::kInt),
          .cu_seqlens = at::tensor({0, 3}, at::kInt),
          .num_generations = 2,
          .sample_ids = at::arange(2, at::kLong),
          .draw = {.max_new_tokens = 4}};
}

// The same, of whose prompts environments bring the ids.
GenerateRequest request_of_episodes() {
  GenerateRequest asked = request();
  asked.prompt_ids = at::empty({0}, at::kInt);
  asked.cu_seqlens = at::tensor({0, 0}, at::kInt);
  asked.episodes = {{.seed = 1, .row = "{}"}};
  return asked;
}

bool decode(std::string_view bytes) {
  const auto samples = rpc::from_bytes<Samples>(bytes);
  const GenerateRequest asked = samples.episodes.empty() ? request() : request_of_episodes();
  check_samples(samples, expected_samples(asked, kVocabRows, kEpisodeTokens), "generator/0");

  int64_t tokens = 0;
  for (const IndexedCompletion& one : unpack_completions(samples)) {
    expect(one.index >= 0 && one.index < 2, "a completion that was not asked for");
    expect(!enum_name(one.completion.finish_reason).empty(), "an unknown reason");
    tokens += static_cast<int64_t>(one.completion.token_ids.size());
    for (const auto* numbers : {&one.completion.logps, &one.completion.sampling_logps})
      expect(numbers->empty() || numbers->size() == one.completion.token_ids.size(),
             "log-probabilities of some tokens alone");
    int64_t of_spans = 0;
    for (const models::Span& span : one.completion.spans)
      of_spans += span.tokens;
    expect(one.completion.spans.empty() ||
               of_spans == static_cast<int64_t>(one.completion.token_ids.size()),
           "spans of other tokens");
  }
  expect(tokens == samples.token_ids.numel(), "offsets do not end at the number of tokens");
  expect(rpc::to_bytes(samples) == bytes, "encoded again it has other bytes");
  return true;
}

// An answer to `asked`.
std::string answer(const GenerateRequest& asked,
                   const std::vector<IndexedCompletion>& completions) {
  Samples samples = pack_completions(completions);
  samples.request_id = asked.request_id;
  samples.generator = "generator/0";
  samples.weight_version = asked.weight_version;
  samples.sequence_hash =
      sequence_hash(asked.prompt_ids, asked.cu_seqlens, at::empty({0}, at::kInt));
  return rpc::to_bytes(samples);
}

std::vector<Seed> seeds() {
  using models::SpanSource;
  const std::vector<IndexedCompletion> completions{
      {1, {.token_ids = {4, 99}, .logps = {-1, -2}, .sampling_logps = {-1, -2}}},
      {0,
       {.token_ids = {7},
        .logps = {-0.5},
        .sampling_logps = {0},
        .finish_reason = models::FinishReason::kEos}}};
  const std::vector<IndexedCompletion> episodes{
      {1,
       {.token_ids = {4, 99, 5, 6},
        .spans = {{.source = SpanSource::kPrompt, .tokens = 1},
                  {.source = SpanSource::kModel, .weight_version = 3, .tokens = 2},
                  {.source = SpanSource::kEnvironment, .tokens = 1}},
        .episode = R"({"reward": 1})",
        .logps = {0, -2, -3, 0},
        .sampling_logps = {0, -2, -3, 0}}}};
  return {{"samples", answer(request(), completions)},
          {"episodes", answer(request_of_episodes(), episodes)}};
}

}  // namespace

Target target() { return {"samples", decode, seeds}; }

}  // namespace retort::fuzz::samples
