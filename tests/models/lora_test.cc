// Adapters: what they compute, their gradients, their files, and what they cost.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint/adapter.h"
#include "models/decoder/merged_weights.h"
#include "models/lora/lora_linear.h"
#include "models/lora/lora_targets.h"
#include "models/memory/memory_estimate.h"
#include "models/safetensors/safetensors.h"
#include "tests/models/small_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::TemporaryFolder;

LoraConfig all_linear(int64_t r = 4) {
  LoraConfig lora{.r = r, .lora_alpha = 6, .target_modules = {}};
  for (const std::string_view module : linear_modules())
    lora.target_modules.emplace_back(module);
  return lora;
}

// With a B that is not zero.
Decoder adapted_decoder(const LoraConfig& lora) {
  Decoder decoder = Decoder::random(small_config(), 5, at::kFloat);
  attach_new_adapter(decoder, lora, 11);
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    if (name.ends_with("lora_B.weight"))
      at::Tensor(value).copy_(at::arange(value.numel()).sin().mul(0.05).view(value.sizes()));
  return decoder;
}

PackedTokens tokens() { return pack_rows({some_tokens(9, 1), some_tokens(5, 2)}); }

double largest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

// The fused layers against the same formula made of operators, in fp64: outputs, and the gradients
// of the input, of A and of B. Nothing else gets one.
TEST(LoraLinear, IsTheFormulaWithItsGradients) {
  const auto f64 = at::TensorOptions().dtype(at::kDouble);
  const double scaling = 1.75;
  const std::vector<at::Tensor> weights{at::randn({6, 5}, f64), at::randn({4, 5}, f64)};
  const std::vector<at::Tensor> biases{at::randn({6}, f64), at::randn({4}, f64)};
  // The second is not adapted.
  at::Tensor x = at::randn({7, 5}, f64).set_requires_grad(true);
  at::Tensor a = at::randn({3, 5}, f64).set_requires_grad(true);
  at::Tensor b = at::randn({6, 3}, f64).set_requires_grad(true);
  const at::Tensor up = at::randn({7, 6}, f64), other_up = at::randn({7, 4}, f64);

  const auto got = adapted_column_linear(x, weights, biases, {{a, b}, {}}, scaling);
  const at::Tensor want =
      at::linear(x, weights[0], biases[0]) + at::mm(at::mm(x, a.t()), b.t()) * scaling;
  const at::Tensor other = at::linear(x, weights[1], biases[1]);
  EXPECT_LT(largest(got[0] - want), 1e-12);
  EXPECT_LT(largest(got[1] - other), 1e-12);

  const auto gradients = [&](const at::Tensor& first, const at::Tensor& second) {
    return torch::autograd::grad({first, second}, {x, a, b}, {up, other_up});
  };
  const auto mine = gradients(got[0], got[1]), theirs = gradients(want, other);
  for (size_t i = 0; i < mine.size(); ++i)
    EXPECT_LT(largest(mine[i] - theirs[i]), 1e-12) << i;
}

// A new adapter changes no bit of the function; one with a B does, until it is switched off.
TEST(Lora, SwitchedOffIsTheModelItself) {
  const Decoder plain = Decoder::random(small_config(), 5, at::kFloat);
  const at::Tensor base = plain.hidden(tokens());
  Decoder fresh = Decoder::random(small_config(), 5, at::kFloat);
  attach_new_adapter(fresh, all_linear(), 11);
  EXPECT_TRUE(at::equal(fresh.hidden(tokens()), base));

  Decoder decoder = adapted_decoder(all_linear());
  EXPECT_GT(largest(decoder.hidden(tokens()) - base), 1e-3);
  decoder.use_adapter(AdapterState::kNone);
  EXPECT_TRUE(at::equal(decoder.hidden(tokens()), base));
}

// A folder with the decoder's adapter, as PEFT saves one.
void save_adapter(const Decoder& decoder, const TemporaryFolder& folder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    tensors.emplace_back("base_model.model." + name, value.detach());
  write_safetensors(folder / kAdapterWeightsFile, tensors);
  std::ofstream(folder / kAdapterConfigFile) << write_adapter_config(*decoder.lora(), "there");
}

// What training began with stays as it is while the adapter moves, and is computed with, trained,
// saved and merged nowhere else.
TEST(Lora, TheFirstStateDoesNotMove) {
  for (const bool checkpointing : {false, true}) {
    TemporaryFolder folder;
    const at::Tensor base = Decoder::random(small_config(), 5, at::kFloat).hidden(tokens());
    Decoder decoder = adapted_decoder(all_linear());
    decoder.set_gradient_checkpointing(checkpointing);
    const at::Tensor began = decoder.hidden(tokens());
    save_adapter(decoder, folder);
    EXPECT_FALSE(decoder.has_first_adapter());
    attach_first_adapter(decoder, folder.path());
    EXPECT_EQ(decoder.trained_parameters().size(), 2 * 2 * 7U);
    for (const auto& [name, value, shard] : decoder.trained_parameters())
      at::Tensor(value).add_(0.02);

    const at::Tensor moved = decoder.hidden(tokens());
    EXPECT_GT(largest(moved - began), 1e-3);
    decoder.use_adapter(AdapterState::kFirst);
    EXPECT_TRUE(at::equal(decoder.hidden(tokens()), began));
    decoder.use_adapter(AdapterState::kNone);
    EXPECT_TRUE(at::equal(decoder.hidden(tokens()), base));
    decoder.use_adapter(AdapterState::kTrained);
    EXPECT_TRUE(at::equal(decoder.hidden(tokens()), moved));
    merge_adapter(decoder);
    EXPECT_FALSE(decoder.has_first_adapter());
    EXPECT_LT(largest(decoder.hidden(tokens()) - moved), 1e-5 * largest(moved));

    // It is of the adapter that is there.
    Decoder narrower = adapted_decoder(all_linear(2));
    test::expect_error(ErrorCode::kMismatch, "other settings",
                       [&] { attach_first_adapter(narrower, folder.path()); });
  }
}

// Its fingerprint is that of its numbers.
TEST(Lora, AnotherStateHasAnotherFingerprint) {
  TemporaryFolder folder;
  Decoder decoder = adapted_decoder(all_linear());
  save_adapter(decoder, folder);
  const std::string began = adapter_fingerprint(folder.path());
  save_adapter(decoder, folder);
  EXPECT_EQ(adapter_fingerprint(folder.path()), began);
  at::Tensor(decoder.trained_parameters().back().value).add_(0.02);
  save_adapter(decoder, folder);
  EXPECT_NE(adapter_fingerprint(folder.path()), began);
}

TEST(Lora, MergedComputesTheSame) {
  for (const bool checkpointing : {false, true}) {
    Decoder decoder = adapted_decoder(all_linear());
    decoder.set_gradient_checkpointing(checkpointing);
    const at::Tensor want = decoder.hidden(tokens());
    const auto before = decoder.parameters();
    const auto merged = merged_parameters(decoder);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ(merged[i].value.is_same(before[i].value), !before[i].name.ends_with("_proj.weight"))
          << before[i].name;
    merge_adapter(decoder);
    EXPECT_EQ(decoder.lora(), nullptr);
    EXPECT_LT(largest(decoder.hidden(tokens()) - want), 1e-5 * largest(want));
  }
}

// The adapter alone gets gradients, with and without recomputation, and the same ones.
TEST(Lora, TrainsNothingElse) {
  const std::vector<LoraConfig> configs{
      all_linear(), {.r = 2, .lora_alpha = 4, .target_modules = {"v_proj", "down_proj"}}};
  for (const LoraConfig& lora : configs) {
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool checkpointing : {false, true}) {
      Decoder decoder = adapted_decoder(lora);
      decoder.set_gradient_checkpointing(checkpointing);
      decoder.set_requires_grad(true);
      EXPECT_EQ(decoder.trained_parameters().size(), 2 * 2 * lora.target_modules.size());
      decoder.hidden(tokens()).square().sum().backward();
      for (const auto& [name, value, shard] : decoder.parameters()) {
        EXPECT_FALSE(value.requires_grad()) << name;
        EXPECT_FALSE(value.grad().defined()) << name;
      }
      auto& own = gradients.emplace_back();
      for (const auto& [name, value, shard] : decoder.trained_parameters()) {
        ASSERT_TRUE(value.grad().defined()) << name;
        EXPECT_GT(largest(value.grad()), 0) << name;
        own.push_back(value.grad());
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i)
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

// PEFT's names and config in, the same factors out.
TEST(LoraFiles, AreReadBackBitForBit) {
  TemporaryFolder folder;
  const Decoder decoder = adapted_decoder(all_linear());
  const CheckpointPart part = trained_part(decoder, at::kFloat);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    tensors.emplace_back("base_model.model." + name, value);
  EXPECT_EQ(part.pieces.size(), tensors.size());
  EXPECT_EQ(part.files.files.front().first, "adapter_model.safetensors");
  EXPECT_TRUE(part.files.files.front().second.tensors().contains(
      "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"));
  write_safetensors(folder / kAdapterWeightsFile, tensors);
  std::ofstream(folder / kAdapterConfigFile) << write_adapter_config(*decoder.lora(), "there");

  EXPECT_EQ(read_adapter_config(folder.path()), *decoder.lora());
  EXPECT_TRUE(is_adapter_folder(folder.path()));
  Decoder again = Decoder::random(small_config(), 5, at::kFloat);
  attach_adapter(again, folder.path());
  EXPECT_TRUE(at::equal(again.hidden(tokens()), decoder.hidden(tokens())));
  const auto saved = nlohmann::json::parse(read_file(folder / kAdapterConfigFile));
  EXPECT_EQ(saved.at("base_model_name_or_path"), "there");
  EXPECT_EQ(saved.at("task_type"), "CAUSAL_LM");
  EXPECT_TRUE(saved.at("lora_alpha").is_number_integer());

  // A model of another shape, and tensors that are missing or too many.
  ModelConfig wider = small_config();
  wider.intermediate_size = 320;
  Decoder other = Decoder::random(wider, 5, at::kFloat);
  test::expect_error(ErrorCode::kInvalidArgument, "another shape",
                     [&] { attach_adapter(other, folder.path()); });
  auto fewer = tensors;
  fewer.pop_back();
  write_safetensors(folder / kAdapterWeightsFile, fewer);
  test::expect_error(ErrorCode::kInvalidArgument, "is missing",
                     [&] { attach_adapter(again, folder.path()); });
  tensors.emplace_back("base_model.model.lm_head.lora_A.weight", at::arange(4.0));
  write_safetensors(folder / kAdapterWeightsFile, tensors);
  test::expect_error(ErrorCode::kInvalidArgument, "belongs to no layer",
                     [&] { attach_adapter(again, folder.path()); });
}

// What PEFT would compute otherwise is refused by its name.
TEST(LoraFiles, RefusesOtherMethodsByName) {
  const std::vector<std::pair<std::string, std::string>> bad{
      {"use_dora", "true"},
      {"use_rslora", "1"},
      {"bias", "\"all\""},
      {"rank_pattern", R"({"q_proj": 2})"},
      {"alpha_pattern", R"({"q_proj": 2})"},
      {"modules_to_save", R"("lm_head")"},
      {"fan_in_fan_out", "true"},
      {"layers_to_transform", "[0]"},
      {"target_modules", R"(["lm_head"])"},
      {"target_modules", R"("(q_proj")"},
      {"target_modules", R"(["model.layers.0.self_attn.q_norm"])"},
      {"target_modules", "[]"},
      {"init_lora_weights", "\"pissa\""},
      {"peft_type", "\"IA3\""},
      {"r", "0"},
      {"r", "1.5"},
      {"lora_alpha", "0"},
      {"a_method_of_tomorrow", "1"}};
  for (const auto& [key, value] : bad) {
    TemporaryFolder folder;
    auto json = nlohmann::json::parse(write_adapter_config(all_linear(), "there"));
    json[key] = nlohmann::json::parse(value);
    std::ofstream(folder / kAdapterConfigFile) << json.dump();
    test::expect_error(ErrorCode::kInvalidArgument, key,
                       [&] { read_adapter_config(folder.path()); });
  }
  TemporaryFolder folder;
  std::ofstream(folder / kAdapterConfigFile) << "{";
  test::expect_error(ErrorCode::kInvalidArgument, "not valid JSON",
                     [&] { read_adapter_config(folder.path()); });
  std::ofstream(folder / kAdapterConfigFile) << write_adapter_config(all_linear(), "nowhere");
  test::expect_error(ErrorCode::kInvalidArgument, "base_model_name_or_path",
                     [&] { adapter_base_folder(folder.path()); });
}

ModelConfig fused_config() {
  ModelConfig config = small_config();
  config.family = Family::kPhi3;
  config.attention_bias = false;
  config.fused_projections = true;
  return config;
}

std::vector<std::string> adapted_names(const ModelConfig& config, const LoraConfig& lora) {
  std::vector<std::string> names;
  for (const AdaptedModule& module : adapted_modules(config, lora))
    names.push_back(module.name);
  return names;
}

// A list names ends of whole names, a pattern whole names, as PEFT has it.
TEST(LoraTargets, AreFoundAsPeftFindsThem) {
  using Names = std::vector<std::string>;
  const ModelConfig config = small_config();
  const std::string first = "model.layers.0.", second = "model.layers.1.";
  const auto listed = [&](Names names) {
    return adapted_names(config, {.target_modules = std::move(names)});
  };
  const auto matched = [&](const std::string& pattern) {
    return adapted_names(config, {.target_pattern = pattern});
  };
  EXPECT_EQ(listed({"all-linear"}).size(), 14U);
  EXPECT_EQ(listed({"v_proj"}), Names({first + "self_attn.v_proj", second + "self_attn.v_proj"}));
  EXPECT_EQ(listed({"1.mlp.up_proj", first + "self_attn.o_proj"}),
            Names({first + "self_attn.o_proj", second + "mlp.up_proj"}));
  EXPECT_EQ(matched(R"(.*\.1\.mlp\.(gate|up)_proj)"),
            Names({second + "mlp.gate_proj", second + "mlp.up_proj"}));
  EXPECT_EQ(matched(R"(model\.layers\.(?P<n>0)\.self_attn\.(?!k|v).*)"),
            Names({first + "self_attn.q_proj", first + "self_attn.o_proj"}));
  EXPECT_EQ(unmatched_target(config, {.target_modules = {"q_proj", "qkv_proj"}}), "qkv_proj");

  // A part of a name is no match, and one that runs away ends.
  for (const std::string pattern : {"q_proj", "model", ".*lm_head", "(.*)*(.*)*(.*)*(.*)*x"})
    test::expect_error(ErrorCode::kInvalidArgument, "target_modules", [&] { matched(pattern); });
  test::expect_error(ErrorCode::kInvalidArgument, "names no linear layer",
                     [&] { listed({"proj"}); });

  // Other words for the same layers are the same adapter.
  const LoraConfig words{.target_modules = {"v_proj", "q_proj"}};
  const LoraConfig pattern{.target_pattern = R"(.*\.(q|v)_proj)"};
  EXPECT_TRUE(same_adapters(config, words, pattern));
  EXPECT_EQ(describe_adapter(config, words), describe_adapter(config, pattern));
  EXPECT_FALSE(same_adapters(config, words, {.target_modules = {"q_proj"}}));
  EXPECT_FALSE(
      same_adapters(config, words, {.target_modules = words.target_modules, .use_rslora = true}));
  EXPECT_EQ(with_named_targets(fused_config(), {.target_modules = {"all-linear"}}).target_modules,
            Names({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}));
}

// PEFT knows Phi-3's q, k and v, and its gate and up, as one matrix each, with one A. What is
// merged computes the same, and files hold B as one.
TEST(LoraFiles, HoldFusedMatricesAsPeftDoes) {
  const LoraConfig lora{.r = 4, .lora_alpha = 6, .target_modules = {"all-linear"}};
  Decoder decoder = Decoder::random(fused_config(), 5, at::kFloat);
  const at::Tensor base = decoder.hidden(tokens());
  attach_new_adapter(decoder, lora, 11);
  EXPECT_TRUE(at::equal(decoder.hidden(tokens()), base));
  EXPECT_EQ(decoder.trained_parameters().size(), 2 * (4 + 2 + 3 + 2U));
  for (const auto& [name, value, shard] : decoder.trained_parameters())
    if (name.ends_with("lora_B.weight"))
      at::Tensor(value).copy_(at::arange(value.numel()).sin().mul(0.05).view(value.sizes()));
  const at::Tensor want = decoder.hidden(tokens());

  const auto infos = adapter_infos(decoder.config(), lora, at::kFloat);
  ASSERT_EQ(infos.size(), 2 * 2 * 4U);
  EXPECT_EQ(infos[1].name, "model.layers.0.self_attn.qkv_proj.lora_B.weight");
  EXPECT_EQ(infos[1].shape, std::vector<int64_t>({128 + 2 * 64, 4}));
  const CheckpointPart part = trained_part(decoder, at::kFloat);
  EXPECT_EQ(part.pieces[3].name, "base_model.model." + infos[1].name);
  EXPECT_EQ(part.pieces[3].offset, 128 + 64);

  merge_adapter(decoder);
  EXPECT_LT(largest(decoder.hidden(tokens()) - want), 1e-5 * largest(want));
  test::expect_error(ErrorCode::kInvalidArgument, "names no linear layer", [&] {
    attach_new_adapter(decoder, {.r = 4, .target_modules = {"q_proj"}}, 11);
  });
}

// The formula of `retort plan` counts what is there: the adapter's gradients, masters and moments,
// and nothing of the frozen weights but themselves.
TEST(LoraMemory, IsWhatThePlanSays) {
  const ModelConfig config = small_config();
  for (const LoraConfig& lora :
       {all_linear(8), LoraConfig{.r = 2, .lora_alpha = 4, .target_modules = {"k_proj", "o_proj"}}})
    for (const int64_t bytes : {4, 2}) {
      Decoder decoder = Decoder::random(config, 5, bytes == 4 ? at::kFloat : at::kBFloat16);
      attach_new_adapter(decoder, lora, 1);
      int64_t frozen = 0, trained = 0;
      for (const auto& [name, value, shard] : decoder.parameters())
        frozen += value.numel();
      for (const auto& [name, value, shard] : decoder.trained_parameters())
        trained += value.numel();
      const TrainingMemory plan =
          estimate_training_memory(config, {.tokens = 64, .dtype_bytes = bytes, .lora = lora});
      EXPECT_EQ(plan.parameters, (frozen + trained) * bytes);
      EXPECT_EQ(plan.gradients, trained * 4);
      EXPECT_EQ(plan.optimizer, trained * (bytes == 4 ? 8 : 12));
      const TrainingMemory beside_its_first = estimate_training_memory(
          config, {.tokens = 64, .dtype_bytes = bytes, .lora = lora, .first_adapter = true});
      EXPECT_EQ(beside_its_first.parameters, (frozen + 2 * trained) * bytes);
      EXPECT_EQ(beside_its_first.peak() - plan.peak(), trained * bytes);

      const TrainingMemory whole =
          estimate_training_memory(config, {.tokens = 64, .dtype_bytes = bytes});
      EXPECT_EQ(whole.gradients, frozen * 4);
      EXPECT_LT(plan.always(), whole.always());
      EXPECT_LT(plan.temporary, whole.temporary);
    }
}

// Over tp = 2 each rank has A whole and its rows of B, or its columns of A and B whole.
TEST(LoraMemory, IsSplitLikeTheWeights) {
  const ModelConfig config = small_config();
  const auto gradients = [&](const std::string& module, int64_t tp) {
    const LoraConfig lora{.r = 2, .lora_alpha = 4, .target_modules = {module}};
    return estimate_training_memory(config, {.layout = {.tp = tp}, .tokens = 8, .lora = lora})
               .gradients /
           (4 * 2 * 2);
  };
  EXPECT_EQ(gradients("gate_proj", 1), 128 + 256);
  EXPECT_EQ(gradients("gate_proj", 2), 128 + 128);
  EXPECT_EQ(gradients("down_proj", 2), 128 + 128);
  EXPECT_EQ(gradients("k_proj", 2), 128 + 32);
}

}  // namespace
}  // namespace retort::models
