#include "models/config/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "tests/models/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using Json = nlohmann::ordered_json;

Json base_config(const std::string& type) {
  return Json::parse(R"({"model_type": ")" + type +
                     R"(", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
     "hidden_act": ")" +
                     (type.starts_with("gemma") ? "gelu_pytorch_tanh" : "silu") + R"("})");
}

ModelConfig parse(const Json& json) {
  return parse_model_config(json.dump(), "folder/config.json");
}

struct Refusal {
  const char* type;
  const char* key;                 // set to `value`
  const char* value;               // JSON; "remove" takes the key away
  std::vector<const char*> named;  // in the message
};

class ConfigRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ConfigRefusal, NamesFileKeyAndValue) {
  const Refusal& refusal = GetParam();
  Json json = base_config(refusal.type);
  ASSERT_NO_THROW(parse(json));
  if (std::string(refusal.value) == "remove") {
    json.erase(refusal.key);
  } else {
    json[refusal.key] = Json::parse(refusal.value);
  }
  SCOPED_TRACE(std::string(refusal.key) + " = " + refusal.value);
  const std::string message = test::message_of([&] { parse(json); });
  EXPECT_NE(message.find("folder/config.json"), std::string::npos) << message;
  EXPECT_NE(message.find(refusal.key), std::string::npos) << message;
  for (const char* word : refusal.named)
    EXPECT_NE(message.find(word), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRefusal,
    testing::Values(
        Refusal{"llama", "model_type", "\"gpt2\"", {"gpt2", "llama, mistral, qwen2, qwen3"}},
        Refusal{"llama", "hidden_act", "\"gelu\"", {"gelu", "silu"}},
        Refusal{"llama", "pretraining_tp", "2", {"2"}},
        Refusal{"qwen2", "quantization_config", R"({"bits": 4})", {"bits"}},
        Refusal{
            "llama", "rope_scaling", R"({"rope_type": "ntk", "factor": 4.0})", {"ntk", "llama3"}},
        Refusal{"llama", "rope_scaling", R"({"type": "dynamic"})", {"dynamic", "factor"}},
        Refusal{"llama",
                "rope_scaling",
                R"({"rope_type": "yarn", "factor": 4.0, "mrope_section": [1, 2]})",
                {"mrope_section", "not known"}},
        Refusal{"llama",
                "rope_scaling",
                R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 2})",
                {"beta_fast", "beta_slow"}},
        Refusal{"llama",
                "rope_scaling",
                R"({"rope_type": "yarn", "factor": 4.0, "truncate": 1})",
                {"truncate", "true or false"}},
        Refusal{"llama",
                "rope_scaling",
                R"({"rope_type": "longrope", "short_factor": [1, 1, 1, 1]})",
                {"long_factor"}},
        Refusal{"phi3",
                "rope_scaling",
                R"({"type": "su", "short_factor": [1, 1, 1], "long_factor": [1, 1, 1, 1]})",
                {"short_factor", "4 positive"}},
        Refusal{
            "phi3",
            "rope_scaling",
            R"({"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 0, 1, 1]})",
            {"long_factor", "4 positive"}},
        Refusal{"phi3", "rope_scaling", R"({"type": "linear", "factor": 2.0})", {"longrope"}},
        Refusal{"phi3", "partial_rotary_factor", "0.4", {"even number"}},
        Refusal{"phi3", "resid_pdrop", "0.1", {"0.1"}},
        Refusal{"phi3", "attention_bias", "true", {"true"}},
        Refusal{"gemma2", "hidden_activation", "\"gelu\"", {"gelu_pytorch_tanh"}},
        Refusal{"gemma2", "attn_logit_softcapping", "0", {"positive"}},
        Refusal{"gemma2", "use_bidirectional_attention", "true", {"true"}},
        Refusal{"gemma3_text", "attn_logit_softcapping", "30.0", {"30"}},
        Refusal{"gemma3_text", "sliding_window", "null", {"need a sliding_window"}},
        Refusal{"gemma3_text",
                "rope_parameters",
                R"({"rope_type": "default"})",
                {"full_attention", "sliding_attention"}},
        Refusal{"gemma3_text",
                "rope_parameters",
                R"({"full_attention": {"rope_type": "ntk"}})",
                {"rope_parameters.full_attention", "ntk"}},
        Refusal{"llama", "rope_scaling", R"({"rope_type": "linear"})", {"factor"}},
        Refusal{"llama",
                "rope_scaling",
                R"({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0})",
                {"low_freq_factor"}},
        Refusal{"qwen3",
                "rope_parameters",
                R"({"full_attention": {"rope_type": "default"}})",
                {"full_attention"}},
        Refusal{"llama", "partial_rotary_factor", "0.5", {"0.5"}},
        Refusal{"llama", "attn_logit_softcapping", "30.0", {"30"}},
        Refusal{"llama", "final_logit_softcapping", "30.0", {"30"}},
        Refusal{"qwen2", "attention_dropout", "0.1", {"0.1"}},
        Refusal{"qwen3", "num_experts", "8", {"8"}},
        Refusal{"llama", "vocab_size", "remove", {"missing"}},
        Refusal{"llama", "hidden_size", "\"32\"", {"integer"}},
        Refusal{"llama", "vocab_size", "0", {"at least 1"}},
        Refusal{"llama", "num_key_value_heads", "3", {"divide"}},
        Refusal{"llama", "head_dim", "7", {"even"}},
        Refusal{"llama", "rms_norm_eps", "\"small\"", {"number"}},
        Refusal{"llama", "tie_word_embeddings", "1", {"true or false"}},
        Refusal{"llama", "torch_dtype", "\"float64\"", {"float64", "bfloat16"}},
        Refusal{"qwen2", "layer_types", R"(["full_attention"])", {"3"}},
        Refusal{"qwen2",
                "layer_types",
                R"(["full_attention", "full_attention", "chunked_attention"])",
                {"chunked_attention"}},
        Refusal{"qwen2",
                "layer_types",
                R"(["full_attention", "full_attention", "sliding_attention"])",
                {"use_sliding_window"}},
        Refusal{"mistral", "sliding_window", "0", {"at least 1"}},
        Refusal{"qwen3", "num_hidden_layers", "1000000000000", {"at most 10000"}},
        Refusal{"llama", "vocab_size", "3000000000", {"at most"}},
        Refusal{"llama", "eos_token_id", "\"</s>\"", {"token id"}}));

TEST(Config, RefusesWhatIsNotAJsonObject) {
  EXPECT_THROW(parse_model_config("{\"model_type\": ", "f"), Error);
  EXPECT_THROW(parse_model_config("[1]", "f"), Error);
}

// What the library prints, it prints with one call a level.
TEST(Config, RefusesWhatIsNestedTooDeeply) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  test::expect_error(ErrorCode::kInvalidArgument, "nested too deeply",
                     [&] { parse_model_config(R"({"model_type": )" + deep + "}", "config.json"); });
}

TEST(Config, DefaultsOfTheFamilies) {
  EXPECT_EQ(parse(base_config("mistral")).sliding_window, (std::vector<int64_t>{4096, 4096, 4096}));
  Json json = base_config("mistral");
  json["sliding_window"] = nullptr;
  EXPECT_EQ(parse(json).sliding_window, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(parse(base_config("qwen3")).head_dim, 128);
  EXPECT_TRUE(parse(base_config("qwen3")).qk_norm);
  EXPECT_EQ(parse(base_config("llama")).head_dim, 8);
  EXPECT_TRUE(parse(base_config("qwen2")).attention_bias);
  EXPECT_FALSE(parse(base_config("qwen2")).attention_out_bias);
  json = base_config("llama");
  json.erase("num_key_value_heads");
  EXPECT_EQ(parse(json).num_key_value_heads, 4);
  json = base_config("qwen2");
  json["use_sliding_window"] = true;
  json["sliding_window"] = 16;
  json["max_window_layers"] = 1;
  EXPECT_EQ(parse(json).sliding_window, (std::vector<int64_t>{0, 16, 16}));
  json["use_sliding_window"] = false;
  EXPECT_EQ(parse(json).sliding_window, (std::vector<int64_t>{0, 0, 0}));
}

TEST(Config, DefaultsOfPhi3AndGemma) {
  const ModelConfig phi = parse(base_config("phi3"));
  EXPECT_EQ(phi.sliding_window, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(phi.rms_norm_eps, 1e-5);
  EXPECT_TRUE(phi.fused_projections);
  const ModelConfig gemma2 = parse(base_config("gemma2"));
  EXPECT_EQ(gemma2.sliding_window, (std::vector<int64_t>{4096, 0, 4096}));
  EXPECT_EQ(gemma2.head_dim, 256);
  EXPECT_EQ(gemma2.score_scale(), 1.0 / 16);
  EXPECT_EQ(gemma2.attn_logit_softcapping, 50.0);
  EXPECT_EQ(gemma2.final_logit_softcapping, 30.0);
  EXPECT_TRUE(gemma2.tie_word_embeddings && gemma2.output_norms && !gemma2.qk_norm);
  EXPECT_EQ(gemma2.pad_token_id, 0);
  EXPECT_EQ(gemma2.eos_token_ids, (std::vector<int64_t>{1}));
  const ModelConfig gemma3 = parse(base_config("gemma3_text"));
  EXPECT_EQ(gemma3.sliding_window, (std::vector<int64_t>{4096, 4096, 4096}));
  EXPECT_EQ(gemma3.rope.theta, 1e6);
  EXPECT_EQ(gemma3.sliding_rope->theta, 10000.0);
  EXPECT_EQ(gemma3.final_logit_softcapping, 0.0);
  EXPECT_TRUE(gemma3.qk_norm);
}

TEST(Config, BothStylesOfGemma3SayTheSame) {
  Json old_style = base_config("gemma3_text");
  old_style["rope_theta"] = 5e5;
  old_style["rope_local_base_freq"] = 300.0;
  old_style["rope_scaling"] = Json::parse(R"({"rope_type": "linear", "factor": 8.0})");
  old_style["sliding_window_pattern"] = 3;
  Json new_style = base_config("gemma3_text");
  new_style["rope_parameters"] = Json::parse(
      R"({"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}})");
  new_style["layer_types"] =
      Json::parse(R"(["sliding_attention", "sliding_attention", "full_attention"])");
  const ModelConfig expected = parse(new_style);
  for (const Json& json : {old_style, new_style}) {
    ModelConfig config = parse(json);
    EXPECT_EQ(config.rope, expected.rope);
    EXPECT_EQ(config.sliding_rope, expected.sliding_rope);
    EXPECT_EQ(config.rope.factor, 8.0);
    EXPECT_EQ(config.sliding_window, (std::vector<int64_t>{4096, 4096, 0}));
    config.sliding_rope->theta = 50.0;
    const ModelConfig back = parse(Json::parse(write_model_config(config)));
    EXPECT_EQ(back.rope, config.rope);
    EXPECT_EQ(back.sliding_rope, config.sliding_rope);
  }
}

// As transformers infers it of yarn and longrope.
TEST(Config, AttentionFactorsOfRotaryScalings) {
  const auto factor_of = [](const char* type, const char* rope) {
    Json json = base_config(type);
    json["max_position_embeddings"] = 4096;
    json["rope_scaling"] = Json::parse(rope);
    return parse(json).rope.attention_factor;
  };
  EXPECT_NEAR(factor_of("llama", R"({"rope_type": "yarn", "factor": 4.0})"), 1.1386294361119891,
              1e-12);
  EXPECT_NEAR(factor_of("llama", R"({"rope_type": "yarn",
                                     "original_max_position_embeddings": 1024})"),
              1.1386294361119891, 1e-12);
  EXPECT_EQ(factor_of("llama", R"({"rope_type": "yarn", "factor": 4.0, "attention_factor": 2})"),
            2.0);
  EXPECT_NEAR(factor_of("llama", R"({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0,
                                     "mscale_all_dim": 0.5})"),
              1.3688879454113936 / 1.1844439727056968, 1e-12);
  EXPECT_NEAR(factor_of("phi3", R"({"type": "su", "short_factor": [1, 1, 1, 1],
                                    "long_factor": [1, 1, 1, 1],
                                    "original_max_position_embeddings": 1024})"),
              1.0954451150103321, 1e-12);
}

TEST(Config, BothStylesSayTheSame) {
  Json old_style = base_config("llama");
  old_style["rope_theta"] = 500000.0;
  old_style["rope_scaling"] =
      Json::parse(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  old_style["torch_dtype"] = "bfloat16";
  Json new_style = base_config("llama");
  new_style["rope_parameters"] = old_style["rope_scaling"];
  new_style["rope_parameters"]["rope_theta"] = 500000.0;
  new_style["dtype"] = "bfloat16";
  for (const Json& json : {old_style, new_style}) {
    const ModelConfig config = parse(json);
    EXPECT_EQ(config.rope.type, "llama3");
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_EQ(config.rope.factor, 8.0);
    EXPECT_EQ(config.rope.original_max_position_embeddings, 8192);
    EXPECT_EQ(config.torch_dtype, "bfloat16");
  }
}

TEST(Config, EosIdsOfGenerationConfigWin) {
  const ModelConfig config = read_model_config(golden_folder("llama3_rope"));
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{2, 3}));
  test::TemporaryFolder folder;
  write_file_atomically(folder.path() / "config.json", base_config("llama").dump());
  EXPECT_TRUE(read_model_config(folder.path()).eos_token_ids.empty());
  write_file_atomically(folder.path() / "generation_config.json", R"({"eos_token_id": [7, 9]})");
  EXPECT_EQ(read_model_config(folder.path()).eos_token_ids, (std::vector<int64_t>{7, 9}));
}

TEST(Config, WritesBackWhatItRead) {
  for (const char* name : kGoldens) {
    const std::string text = read_file(golden_folder(name) / "config.json");
    EXPECT_EQ(write_model_config(parse_model_config(text, name)), text) << name;
  }
}

TEST(Config, KeepsUnknownKeysAndTheirOrder) {
  Json json = base_config("qwen2");
  json["zeta"] = {{"nested", 1}};
  json["alpha"] = nullptr;
  ModelConfig config = parse(json);
  EXPECT_EQ(config.unknown_keys, (std::vector<std::string>{"zeta", "alpha"}));
  config.vocab_size = 128;
  json["vocab_size"] = 128;
  EXPECT_EQ(write_model_config(config), json.dump(2) + "\n");
}

TEST(Config, WritesChangesInTheStyleItRead) {
  ModelConfig config = read_model_config(golden_folder("llama3_rope"));  // style of transformers 4
  config.torch_dtype = "bfloat16";
  config.rope.theta = 10000.0;
  Json json = Json::parse(write_model_config(config));
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_EQ(json["rope_theta"], 10000.0);
  EXPECT_EQ(json["rope_scaling"]["rope_type"], "llama3");
  EXPECT_FALSE(json.contains("dtype") || json.contains("rope_parameters"));

  // The style of transformers 5.
  config = read_model_config(golden_folder("qwen2"));
  config.torch_dtype = "bfloat16";
  config.rope.theta = 1e6;
  json = Json::parse(write_model_config(config));
  EXPECT_EQ(json["dtype"], "bfloat16");
  EXPECT_EQ(json["rope_parameters"]["rope_theta"], 1e6);
  EXPECT_FALSE(json.contains("torch_dtype") || json.contains("rope_theta"));
}

// A config that was not read from a file.
ModelConfig fresh_config(Family family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 100;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  config.attention_bias = family == Family::kQwen2;
  apply_family(config);
  config.rope.theta = 1e6;
  const bool one = family == Family::kMistral || family == Family::kPhi3;
  config.sliding_window = {one || config.output_norms ? 32 : 0, one ? 32 : 0};
  if (family == Family::kGemma3) config.sliding_rope = Rope{.theta = 500.0};
  if (family == Family::kGemma2) config.attn_logit_softcapping = 7.0;
  config.eos_token_ids = {3, 4};
  config.bos_token_id = 1;
  return config;
}

TEST(Config, AFreshConfigReadsBackTheSame) {
  for (Family family : {Family::kLlama, Family::kMistral, Family::kQwen2, Family::kQwen3,
                        Family::kPhi3, Family::kGemma2, Family::kGemma3}) {
    const ModelConfig config = fresh_config(family);
    const ModelConfig back = parse_model_config(write_model_config(config), "fresh");
    EXPECT_EQ(back.family, family);
    EXPECT_EQ(back.num_parameters(), config.num_parameters());
    EXPECT_EQ(back.rope.theta, 1e6);
    EXPECT_EQ(back.sliding_rope, config.sliding_rope);
    EXPECT_EQ(back.attn_logit_softcapping, config.attn_logit_softcapping);
    EXPECT_EQ(back.final_logit_softcapping, 0);
    EXPECT_EQ(back.score_scale(), 0.25);
    EXPECT_EQ(back.sliding_window, config.sliding_window);
    EXPECT_EQ(back.eos_token_ids, config.eos_token_ids);
    EXPECT_EQ(back.bos_token_id, 1);
    EXPECT_EQ(back.rms_norm_eps, 1e-5);
    EXPECT_TRUE(back.tie_word_embeddings);
    EXPECT_TRUE(back.unknown_keys.empty());
  }
}

// What a generator and a cached reference must share beside their weights.
TEST(DescribeFunction, ChangesWithWhatChangesTheFunction) {
  const Json base = base_config("qwen3");
  const std::string same = describe_function(parse(base));
  const std::vector<std::pair<const char*, Json>> changes{{"rope_theta", 10.0},
                                                          {"rms_norm_eps", 1e-3},
                                                          {"intermediate_size", 64},
                                                          {"tie_word_embeddings", true},
                                                          {"head_dim", 16}};
  for (const auto& [key, value] : changes) {
    Json other = base;
    other[key] = value;
    EXPECT_NE(describe_function(parse(other)), same) << key;
  }

  // What only Gemma has.
  const std::vector<std::pair<const char*, Json>> of_gemma{
      {"final_logit_softcapping", 3.0},
      {"query_pre_attn_scalar", 9},
      {"rope_local_base_freq", 77.0},
      {"rope_scaling", Json::parse(R"({"rope_type": "linear", "factor": 8.0})")}};
  const std::string gemma = describe_function(parse(base_config("gemma3_text")));
  for (const auto& [key, value] : of_gemma) {
    Json other = base_config("gemma3_text");
    other[key] = value;
    EXPECT_NE(describe_function(parse(other)), gemma) << key;
  }

  // Keys that change nothing.
  Json unread = base;
  unread["use_cache"] = false;
  unread["max_position_embeddings"] = 77;
  EXPECT_EQ(describe_function(parse(unread)), same);
}

}  // namespace
}  // namespace retort::models
