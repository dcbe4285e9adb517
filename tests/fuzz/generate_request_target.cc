// Decodes: a request for samples: the archive, then what the generator (roles/generator/requests.h)
//   and its engine (models/generation/request_checks.h) refuse before anything is drawn.
// Holds: a request that is taken has a sample id for each completion, known tokens, and room in the
//   cache.
#include "models/generation/request_checks.h"
#include "roles/generator/requests.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include "rpc/archive.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::generate_request {
namespace {

constexpr int64_t kBlocks = 4;
constexpr models::EngineOptions kOptions{.block_tokens = 16, .num_blocks = kBlocks};

models::ModelConfig config() {
  models::ModelConfig config;
  config.vocab_size = 100;
  config.max_position_embeddings = 50;
  return config;
}

bool decode(std::string_view bytes) {
  const auto asked = rpc::from_bytes<roles::GenerateRequest>(bytes);
  roles::check_request(asked);
  const models::GenerationRequest request = roles::unpack_request(asked);
  models::check_request(request, config(), kOptions, kBlocks, /*has_detokenizer=*/true);

  const auto prompts = static_cast<int64_t>(request.prompts.size());
  const auto samples = static_cast<int64_t>(request.sample_ids.size());
  expect(request.num_generations <= samples && prompts * request.num_generations == samples,
         "a completion has no sample id");
  for (const std::vector<int32_t>& prompt : request.prompts) {
    expect(static_cast<int64_t>(prompt.size()) <= 50, "a prompt is longer than the positions");
    for (const int32_t id : prompt)
      expect(id >= 0 && id < 100, "an id lies outside the vocabulary");
  }
  expect(request.draw.max_new_tokens >= 1 && request.draw.max_new_tokens <= 50,
         "a completion would be longer than the positions");
  return true;
}

std::vector<Seed> seeds() {
  roles::GenerateRequest request{.request_id = 1,
                                 .step = 2,
                                 .weight_version = 3,
                                 .prompt_ids = at::tensor({1, 2, 3, 4, 99}, at::kInt),
                                 .cu_seqlens = at::tensor({0, 3, 5}, at::kInt),
                                 .num_generations = 2,
                                 .sample_ids = at::arange(4, at::kLong),
                                 .draw = {.max_new_tokens = 10}};
  std::vector<Seed> all{{"plain", rpc::to_bytes(request)}};
  request.draw = {.sampling = {.temperature = 0.7, .top_p = 0.9, .top_k = 5, .num_ids = 90},
                  .max_new_tokens = 45,
                  .eos_token_ids = {2},
                  .stop = {"stop", "\n"},
                  .stop_token_ids = {3}};
  all.push_back({"sampling", rpc::to_bytes(request)});
  return all;
}

}  // namespace

Target target() { return {"generate_request", decode, seeds}; }

}  // namespace retort::fuzz::generate_request
