// Checkpoints exported as GGUF files and read back: every tensor, the settings, what is refused.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gguf/export_gguf.h"
#include "models/gguf/gguf_encoding.h"
#include "models/gguf/gguf_family.h"
#include "models/ops/rope.h"
#include "models/safetensors/safetensors.h"
#include "tests/models/gguf_reader.h"
#include "tests/models/gguf_support.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::expect_refused;

struct Expressible {
  const char* golden;
  const char* architecture;
  int64_t context_length;  // 0: the model's own
};
constexpr Expressible kExpressible[] = {{"llama", "llama", 0},
                                        {"llama3_rope", "llama", 0},
                                        {"llama_bias_linear", "llama", 0},
                                        {"mistral_sharded", "llama", 0},
                                        {"mistral_window", "llama", 9},
                                        {"qwen2", "qwen2", 0},
                                        {"qwen2_window_bf16", "qwen2", 7},
                                        {"qwen3", "qwen3", 0}};

GgufFile exported(const ExportableModel& model, GgufDtype dtype, int64_t context_length = 0) {
  export_gguf(model.path(), model.output(), {.dtype = dtype, .context_length = context_length});
  return GgufFile(model.output());
}

// The rows of q_proj or k_proj as llama.cpp's "llama" wants them, element by element.
at::Tensor interleaved(const at::Tensor& rows, int64_t head_dim) {
  const at::Tensor from = rows.reshape({rows.size(0), -1}).contiguous();
  at::Tensor to = at::empty_like(from);
  for (int64_t row = 0; row < from.size(0); ++row) {
    const int64_t head = row / head_dim, inside = row % head_dim;
    const int64_t half = inside % 2, element = inside / 2;
    to[row].copy_(from[head * head_dim + half * (head_dim / 2) + element]);
  }
  return to.reshape(rows.sizes());
}

bool same_bytes(const std::string& bytes, const at::Tensor& expected) {
  const at::Tensor flat = expected.contiguous();
  return bytes.size() == flat.nbytes() &&
         std::memcmp(bytes.data(), flat.const_data_ptr(), bytes.size()) == 0;
}

// The names of the tensors of a layer: the checkpoint's and the file's.
const std::map<std::string, std::string> kLayer{
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"}};

std::map<std::string, std::string> names_of(const ModelConfig& config) {
  std::map<std::string, std::string> names{{"model.embed_tokens.weight", "token_embd.weight"},
                                           {"model.norm.weight", "output_norm.weight"},
                                           {"lm_head.weight", "output.weight"}};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string number = std::to_string(layer);
    for (const auto& [from, to] : kLayer)
      for (const char* kind : {".weight", ".bias"})
        names["model.layers." + number + "." + from + kind] = "blk." + number + "." + to + kind;
  }
  return names;
}

// Every tensor of `model` stands in `file` with the same bits, in `dtype` if it is a matrix.
void expect_same_tensors(const ExportableModel& model, const GgufFile& file, at::ScalarType dtype,
                         bool interleave) {
  const ModelConfig config = read_model_config(model.path());
  const auto names = names_of(config);
  const SafetensorsReader reader(model.path());
  size_t count = 0;
  for (const std::string& name : reader.names()) {
    SCOPED_TRACE(name);
    const GgufFile::Tensor& tensor = file.tensors.at(names.at(name));
    at::Tensor expected = reader.get(name);
    const std::vector<int64_t> sizes(expected.sizes().rbegin(), expected.sizes().rend());
    EXPECT_EQ(tensor.sizes, sizes);

    const bool rotated = name.find("q_proj") != name.npos || name.find("k_proj") != name.npos;
    if (rotated) {
      const at::Tensor moved = interleaved(expected, config.head_dim);
      EXPECT_FALSE(at::equal(moved, expected));  // else the order would not be tested
      if (interleave) expected = moved;
    }
    EXPECT_TRUE(same_bytes(tensor.bytes, expected.to(expected.dim() > 1 ? dtype : at::kFloat)));
    ++count;
  }
  EXPECT_EQ(file.tensors.size() - file.tensors.count("rope_freqs.weight"), count);
  EXPECT_EQ(file.tensors.count("output.weight"), config.tie_word_embeddings ? 0u : 1u);
}

TEST(Gguf, EveryTensorOfEveryFamilyBitForBit) {
  const std::pair<GgufDtype, at::ScalarType> dtypes[] = {{GgufDtype::kF32, at::kFloat},
                                                         {GgufDtype::kF16, at::kHalf},
                                                         {GgufDtype::kBF16, at::kBFloat16}};
  for (const Expressible& one : kExpressible) {
    SCOPED_TRACE(one.golden);
    const ExportableModel model(one.golden);
    for (const auto& [dtype, matrices] : dtypes) {
      const GgufFile file = exported(model, dtype, one.context_length);
      EXPECT_EQ(file.get<std::string>("general.architecture"), one.architecture);
      expect_same_tensors(model, file, matrices,
                          file.get<std::string>("general.architecture") == std::string("llama"));
    }
  }
}

TEST(Gguf, TheOrderOfRotaryRowsIsLlamasAlone) {
  const ModelConfig llama = read_model_config(golden_folder("llama"));
  const ModelConfig qwen = read_model_config(golden_folder("qwen3"));
  const std::string layer = "model.layers.0.self_attn.";
  for (const char* name : {"q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"}) {
    EXPECT_TRUE(gguf_interleaves(llama, layer + name));
    EXPECT_FALSE(gguf_interleaves(qwen, layer + name));
  }
  for (const char* name : {"v_proj.weight", "o_proj.weight", "q_norm.weight"})
    EXPECT_FALSE(gguf_interleaves(llama, layer + name));
}

TEST(Gguf, SettingsAreThoseOfTheConfig) {
  const GgufFile file = exported(ExportableModel("llama_bias_linear"), GgufDtype::kF16);
  EXPECT_EQ(file.get<uint32_t>("general.file_type"), 1u);
  EXPECT_EQ(file.get<uint32_t>("llama.block_count"), 2u);
  EXPECT_EQ(file.get<uint32_t>("llama.context_length"), 256u);
  EXPECT_EQ(file.get<uint32_t>("llama.embedding_length"), 32u);
  EXPECT_EQ(file.get<uint32_t>("llama.feed_forward_length"), 48u);
  EXPECT_EQ(file.get<uint32_t>("llama.attention.head_count"), 4u);
  EXPECT_EQ(file.get<uint32_t>("llama.attention.head_count_kv"), 4u);
  EXPECT_EQ(file.get<uint32_t>("llama.attention.key_length"), 16u);
  EXPECT_EQ(file.get<uint32_t>("llama.attention.value_length"), 16u);
  EXPECT_EQ(file.get<uint32_t>("llama.rope.dimension_count"), 16u);
  EXPECT_EQ(file.get<float>("llama.attention.layer_norm_rms_epsilon"), 1e-6f);
  EXPECT_EQ(file.get<float>("llama.rope.freq_base"), 10000.0f);
  EXPECT_EQ(file.get<std::string>("llama.rope.scaling.type"), "linear");
  EXPECT_EQ(file.get<float>("llama.rope.scaling.factor"), 2.0f);
  EXPECT_FALSE(file.tensors.contains("rope_freqs.weight"));

  // A window that is longer than the context changes nothing, and is not there.
  const GgufFile window = exported(ExportableModel("mistral_window"), GgufDtype::kF32, 9);
  EXPECT_EQ(window.get<uint32_t>("llama.context_length"), 9u);
}

TEST(Gguf, RotaryDivisorsGiveLlama3sFrequencies) {
  const ExportableModel model("llama3_rope");
  const GgufFile file = exported(model, GgufDtype::kF32);
  const ModelConfig config = read_model_config(model.path());
  const std::string& bytes = file.tensors.at("rope_freqs.weight").bytes;
  ASSERT_EQ(bytes.size(), static_cast<size_t>(config.head_dim) / 2 * sizeof(float));
  const at::Tensor wanted = rope_inverse_frequencies(config.rope, config.head_dim);
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    float divisor = 0;
    std::memcpy(&divisor, bytes.data() + static_cast<size_t>(i) * sizeof divisor, sizeof divisor);
    const double plain = std::pow(
        config.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    EXPECT_NEAR(plain / divisor / wanted[i].item<double>(), 1.0, 1e-6) << i;
    EXPECT_TRUE(i > 0 || divisor == 1.0f);  // the shortest wavelength is kept
  }
}

// f16 from f32 by the definition: the nearest of its numbers, ties to the even one.
uint16_t to_half(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
  const double rounded = std::nearbyint(value / unit) * unit;
  if (rounded < std::ldexp(1.0, -14)) return static_cast<uint16_t>(std::ldexp(rounded, 24));
  const double fraction = std::frexp(rounded, &exponent) * 2 - 1;
  return static_cast<uint16_t>((exponent - 1 + 15) << 10 |
                               static_cast<int>(std::ldexp(fraction, 10)));
}

// One row by the definition of q8_0.
std::string q8_row(const std::vector<float>& row) {
  std::string bytes;
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < begin + 32; ++i)
      largest = std::abs(row[i]) > largest ? std::abs(row[i]) : largest;
    const float scale = largest / 127;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    const uint16_t half = to_half(scale);
    bytes.append({static_cast<char>(half & 255), static_cast<char>(half >> 8)});
    for (size_t i = begin; i < begin + 32; ++i) {
      const float scaled = row[i] * inverse;
      const double away = std::floor(std::abs(static_cast<double>(scaled)) + 0.5);
      bytes += static_cast<char>(static_cast<int>(scaled < 0 ? -away : away));
    }
  }
  return bytes;
}

TEST(Gguf, Q8BlocksAgreeWithTheDefinition) {
  constexpr int64_t kColumns = 96;
  std::vector<std::vector<float>> rows(5, std::vector<float>(kColumns, 0.0f));
  uint32_t state = 7;
  for (float& number : rows[0]) {
    state = state * 1664525u + 1013904223u;
    number = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * 3.0f;
  }
  // Ties with a scale of one; numbers whose scale is subnormal in f16; blocks of zeros.
  for (size_t i = 0; i < kColumns; ++i) {
    rows[1][i] = static_cast<float>(i % 32) - 15.5f;
    rows[2][i] = std::ldexp(rows[0][i], -20);
    rows[3][i] = i < 32 ? 0.0f : rows[0][i] * 1e4f;
  }
  for (const size_t begin : {0, 32, 64})
    rows[1][begin] = 127.0f;

  std::vector<float> flat;
  std::string expected;
  for (const std::vector<float>& row : rows) {
    flat.insert(flat.end(), row.begin(), row.end());
    expected += q8_row(row);
  }
  const at::Tensor values =
      at::from_blob(flat.data(), {static_cast<int64_t>(rows.size()), kColumns}, at::kFloat);
  EXPECT_TRUE(expected.find(static_cast<char>(-15)) != expected.npos);
  EXPECT_TRUE(same_bytes(expected, gguf_encode("t", values, GgufType::kQ8_0)));
  EXPECT_EQ(static_cast<int8_t>(q8_row(rows[1])[2 + 15]), -1);  // of -0.5: away from zero
}

TEST(Gguf, Q8LeavesNormsAlone) {
  // The golden checkpoints have rows of 48 numbers.
  const ExportableModel model("qwen2");
  expect_refused("rows of 48 numbers; q8_0 stores blocks of 32",
                 [&] { exported(model, GgufDtype::kQ8_0); });
  EXPECT_FALSE(std::filesystem::exists(model.output()));

  // One that fits, with every tensor but the MLP's of the golden one.
  ModelConfig config = read_model_config(model.path());
  config.intermediate_size = 64;
  const Decoder decoder = Decoder::random(config, 3, at::kFloat);
  save_decoder(decoder, at::kFloat, golden_folder("tokenizer"), model.path());
  const GgufFile file = exported(model, GgufDtype::kQ8_0);
  EXPECT_EQ(file.get<uint32_t>("general.file_type"), 7u);
  for (const auto& [name, tensor] : file.tensors)
    EXPECT_EQ(tensor.type, tensor.sizes.size() > 1 ? 8u : 0u) << name;
}

TEST(Gguf, RefusesWhatLlamaCppDoesNotCompute) {
  const auto refused = [](const char* golden, const std::string& part) {
    const ExportableModel model(golden);
    expect_refused(part, [&] { exported(model, GgufDtype::kF32); });
    EXPECT_FALSE(std::filesystem::exists(model.output())) << golden;
  };
  refused("qwen3_bias", "attention_bias");
  refused("mistral_window", "--context-length 9");
  refused("qwen2_window_bf16", "--context-length 7");

  ModelConfig config = read_model_config(golden_folder("qwen2"));
  config.head_dim *= 2;
  expect_refused("head_dim", [&] { check_gguf_expressible(config, 256); });
  config = read_model_config(golden_folder("qwen3"));
  config.rope.type = "llama3";
  expect_refused("rope_type", [&] { check_gguf_expressible(config, 256); });
  expect_refused("f32, f16, bf16 or q8_0", [] { parse_gguf_dtype("q4_0"); });
}

TEST(Gguf, RefusesFamiliesWithoutAGraphByName) {
  const std::pair<const char*, const char*> refused[] = {
      {"phi3_partial", "not phi3"}, {"gemma2", "not gemma2"}, {"gemma3", "not gemma3_text"}};
  for (const auto& [golden, part] : refused) {
    const ModelConfig config = read_model_config(golden_folder(golden));
    expect_refused(part, [&] { check_gguf_expressible(config, 256); });
  }
}

TEST(Gguf, RefusesNumbersThatTheTypeDoesNotHold) {
  const at::Tensor large = at::zeros({1, 32}).fill_(1e5);
  expect_refused("not finite", [&] { gguf_encode("t", large, GgufType::kF16); });
  EXPECT_NO_THROW(gguf_encode("t", large, GgufType::kBF16));
  EXPECT_NO_THROW(gguf_encode("t", large, GgufType::kQ8_0));
  expect_refused("not finite", [&] { gguf_encode("t", large * 1e3, GgufType::kQ8_0); });
  const at::Tensor nan = at::zeros({1, 32}).fill_(std::numeric_limits<double>::quiet_NaN());
  for (const GgufType type : {GgufType::kF32, GgufType::kBF16, GgufType::kQ8_0})
    expect_refused("'t'", [&] { gguf_encode("t", nan, type); });
}

TEST(Gguf, AFailureLeavesTheOldFile) {
  const ExportableModel model("qwen3");
  exported(model, GgufDtype::kF32);
  const std::string before = read_file(model.output());
  expect_refused("q8_0", [&] { exported(model, GgufDtype::kQ8_0); });
  EXPECT_EQ(read_file(model.output()), before);
}

}  // namespace
}  // namespace retort::models
