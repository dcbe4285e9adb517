// A generator's replica whose model lies on the stand-in device, against one on the CPU: the same
// tokens, also of weights that were pushed to both.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint/adapter.h"
#include "models/checkpoint/checkpoint.h"
#include "models/decoder/merged_weights.h"
#include "roles/generator/replica_engine.h"
#include "tests/losses/stand_in_device.h"
#include "tests/roles/sealed_weights.h"
#include "tests/support/source_folder.h"

namespace retort::roles {
namespace {

std::string model_folder() {
  return (test::source_folder() / "tests/recipes/goldens/qwen3").string();
}

models::Decoder model_on(at::Device device) {
  return models::load_decoder(model_folder(), at::kFloat, {}, device);
}

using Tokens = std::map<int64_t, std::vector<int32_t>>;  // by sample

Tokens draw(ReplicaEngine& engine, uint64_t version) {
  const std::vector<int32_t> ids{1, 2, 3, 40, 5, 6};
  engine.submit({.request_id = version,
                 .weight_version = version,
                 .prompt_ids = at::tensor(ids, at::kInt),
                 .cu_seqlens = at::tensor(std::vector<int32_t>{0, 3, 6}, at::kInt),
                 .num_generations = 4,
                 .sample_ids = at::arange(8, at::kLong),
                 .draw = {.sampling = {.temperature = 0.8, .seed = 3}, .max_new_tokens = 12}});
  while (engine.step()) {
  }
  Tokens tokens;
  for (const FinishedSample& sample : engine.finished())
    tokens[sample.index] = sample.completion.token_ids;
  return tokens;
}

void push(ReplicaEngine& engine, const Sealed& weights) {
  for (const WeightBucket& bucket : weights.buckets)
    engine.stage(bucket, "student/0");
  engine.check(weights.commit);
  engine.apply();
}

TEST(DeviceGenerator, DrawsTheCpusTokensBeforeAndAfterAPush) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(model_folder());
  ReplicaEngine on_device(model_on(test::stand_in_device()), tokenizer, {.num_blocks = 32});
  ReplicaEngine on_host(model_on(at::kCPU), tokenizer, {.num_blocks = 32});
  const Tokens first = draw(on_device, 0);
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(first, draw(on_host, 0));

  const models::Decoder other = model_on(at::kCPU);
  for (const parallel::NamedParameter& parameter : other.parameters())
    parameter.value.detach().mul_(1.5);
  const Sealed weights = sealed(other, 1, 4096);
  push(on_device, weights);
  push(on_host, weights);
  const Tokens second = draw(on_device, 1);
  EXPECT_EQ(second, draw(on_host, 1));
  EXPECT_NE(second, first);
}

// The model that the fixtures load, with an adapter whose factors are all of this size.
models::Decoder adapted_on(at::Device device, double factor) {
  models::Decoder decoder = model_on(device);
  models::attach_new_adapter(
      decoder, {.r = 4, .lora_alpha = 8, .target_modules = {"q_proj", "o_proj", "down_proj"}}, 1);
  for (const parallel::NamedParameter& parameter : decoder.trained_parameters())
    if (parameter.name.ends_with("lora_B.weight")) at::Tensor(parameter.value).fill_(factor);
  return decoder;
}

// What is pushed is the adapter; what draws are the tokens of the merged model, by each push.
TEST(DeviceGenerator, MergesAnAdapterThatIsPushed) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(model_folder());
  ReplicaEngine on_device(adapted_on(test::stand_in_device(), 0), tokenizer, {.num_blocks = 32});
  ReplicaEngine on_host(adapted_on(at::kCPU, 0), tokenizer, {.num_blocks = 32});
  ReplicaEngine plain(model_on(at::kCPU), tokenizer, {.num_blocks = 32});
  const Tokens base = draw(plain, 0);
  EXPECT_EQ(draw(on_device, 0), base);
  EXPECT_EQ(draw(on_host, 0), base);

  Tokens before = base;
  for (const uint64_t version : {1, 2}) {
    models::Decoder student = adapted_on(at::kCPU, 0.3 * static_cast<double>(version));
    const Sealed weights = sealed(student, version, 4096);
    push(on_device, weights);
    push(on_host, weights);
    models::merge_adapter(student);
    push(plain, sealed(student, version, 4096));
    const Tokens merged = draw(plain, version);
    EXPECT_NE(merged, std::exchange(before, merged)) << version;
    EXPECT_EQ(draw(on_device, version), merged) << version;
    EXPECT_EQ(draw(on_host, version), merged) << version;
  }
}

}  // namespace
}  // namespace retort::roles
