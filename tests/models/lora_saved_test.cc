// Modules that are trained whole beside an adapter (modules_to_save).
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/checkpoint/adapter.h"
#include "models/decoder/merged_weights.h"
#include "models/lora/lora_targets.h"
#include "models/safetensors/safetensors.h"
#include "tests/models/small_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

PackedTokens saved_tokens() { return pack_rows({some_tokens(9, 1), some_tokens(5, 2)}); }

LoraConfig saving(std::vector<std::string> modules) {
  return {
      .r = 2, .lora_alpha = 4, .target_modules = {"v_proj"}, .modules_to_save = std::move(modules)};
}

Decoder saving_decoder() {
  Decoder decoder = Decoder::random(small_config(), 5, at::kFloat);
  attach_new_adapter(decoder, saving({"embed_tokens", "lm_head", "norm"}), 11);
  return decoder;
}

at::Tensor logits_of(const Decoder& decoder) {
  return decoder.logits(decoder.hidden(saved_tokens())).detach();
}

double widest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

void shift(Decoder& decoder, double by) {
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    at::Tensor(value).add_(by);
}

// A name is the end of a module's; the embedding and the head of a model where they are one, and
// linear layers, are refused.
TEST(LoraSaved, AreFoundAsPeftFindsThem) {
  using Names = std::vector<std::string>;
  const ModelConfig config = small_config();
  EXPECT_EQ(saved_parameters(config, saving({"model.norm", "lm_head"})),
            Names({"model.norm.weight", "lm_head.weight"}));
  EXPECT_EQ(saved_parameters(config, saving({"norm"})),
            Names({"model.layers.0.input_layernorm.weight",
                   "model.layers.0.post_attention_layernorm.weight",
                   "model.layers.1.input_layernorm.weight",
                   "model.layers.1.post_attention_layernorm.weight", "model.norm.weight"}));
  EXPECT_EQ(unmatched_module(config, saving({"norm", "score"})), "score");
  test::expect_error(ErrorCode::kInvalidArgument, "modules_to_save",
                     [&] { saved_parameters(config, saving({"o_proj"})); });
  ModelConfig tied = config;
  tied.tie_word_embeddings = true;
  test::expect_error(ErrorCode::kInvalidArgument, "tie_word_embeddings",
                     [&] { saved_parameters(tied, saving({"embed_tokens"})); });
  EXPECT_FALSE(same_adapters(config, saving({"norm"}), saving({})));
  EXPECT_TRUE(same_adapters(config, saving({"model.norm"}), saving({"l.norm"})));
}

// It begins as the model, whose own tensors stay where they are; the copies are trained, and get
// gradients with and without recomputation.
TEST(LoraSaved, AreTrainedBesideTheModelsOwn) {
  const at::Tensor base = logits_of(Decoder::random(small_config(), 5, at::kFloat));
  Decoder decoder = saving_decoder();
  EXPECT_EQ(decoder.trained_parameters().size(), 3 + 2 * (2 + 2U));
  EXPECT_TRUE(at::equal(logits_of(decoder), base));
  shift(decoder, 0.02);
  const at::Tensor moved = logits_of(decoder);
  EXPECT_GT(widest(moved - base), 1e-2);
  decoder.use_adapter(AdapterState::kNone);
  EXPECT_TRUE(at::equal(logits_of(decoder), base));
  decoder.use_adapter(AdapterState::kTrained);

  for (const bool again : {false, true}) {
    decoder.set_gradient_checkpointing(again);
    decoder.set_requires_grad(true);
    decoder.logits(decoder.hidden(saved_tokens())).square().sum().backward();
    for (const auto& [name, value, shard] : decoder.parameters())
      EXPECT_FALSE(value.grad().defined()) << name;
    for (const auto& [name, value, shard] : decoder.trained_parameters()) {
      ASSERT_TRUE(value.grad().defined()) << name;
      EXPECT_GT(widest(value.grad()), 0) << name;
    }
  }
  decoder.set_requires_grad(false);

  merge_adapter(decoder);
  EXPECT_LT(widest(logits_of(decoder) - moved), 1e-4 * widest(moved));
}

// They are in the adapter's file under PEFT's names, and come from there; the state that training
// began with has them, too.
TEST(LoraSaved, AreReadBackAndKept) {
  test::TemporaryFolder folder;
  Decoder decoder = saving_decoder();
  shift(decoder, 0.02);
  const at::Tensor began = logits_of(decoder);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    tensors.emplace_back("base_model.model." + name, value.detach());
  write_safetensors(folder / kAdapterWeightsFile, tensors);
  std::ofstream(folder / kAdapterConfigFile) << write_adapter_config(*decoder.lora(), "there");
  EXPECT_TRUE(trained_part(decoder, at::kFloat)
                  .files.files.front()
                  .second.tensors()
                  .contains("base_model.model.lm_head.weight"));

  Decoder again = Decoder::random(small_config(), 5, at::kFloat);
  attach_adapter(again, folder.path());
  EXPECT_EQ(*again.lora(), *decoder.lora());
  EXPECT_TRUE(at::equal(logits_of(again), began));
  attach_first_adapter(again, folder.path());
  shift(again, 0.03);
  EXPECT_GT(widest(logits_of(again) - began), 1e-2);
  again.use_adapter(AdapterState::kFirst);
  EXPECT_TRUE(at::equal(logits_of(again), began));
}

}  // namespace
}  // namespace retort::models
