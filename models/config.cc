#include "models/config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "models/config_fields.h"
#include "models/config_keys.h"
#include "models/config_rope.h"
#include "models/config_windows.h"

namespace retort::models {
namespace {

constexpr const char* kSupportedFamilies = "llama, mistral, qwen2, qwen3";

Family parse_family(const ConfigFields& fields) {
  const std::string type = fields.text("model_type", "");
  if (type == "llama") return Family::kLlama;
  if (type == "mistral") return Family::kMistral;
  if (type == "qwen2") return Family::kQwen2;
  if (type == "qwen3") return Family::kQwen3;
  fields.fail("model_type", type, std::string("supported model types: ") + kSupportedFamilies);
}

const char* family_name(Family family) {
  switch (family) {
    case Family::kLlama: return "llama";
    case Family::kMistral: return "mistral";
    case Family::kQwen2: return "qwen2";
    case Family::kQwen3: return "qwen3";
  }
  return "";
}

// A key that changes what the model computes and is not implemented, with the values at which it
// changes nothing.
struct NeutralValues {
  const char* key;
  std::vector<ConfigJson> values;
  const char* expected;
};

std::vector<NeutralValues> neutral_values() {
  return {{"pretraining_tp", {1}, "supported: 1"},
          {"quantization_config", {}, "supported: none; load the unquantised checkpoint"},
          {"partial_rotary_factor", {1.0}, "supported: 1.0"},
          {"attention_dropout", {0.0}, "supported: 0.0"},
          {"hidden_dropout", {0.0}, "supported: 0.0"},
          {"is_encoder_decoder", {false}, "supported: false"},
          {"is_causal", {true}, "supported: true"},
          {"attn_logit_softcapping", {}, "supported: null"},
          {"final_logit_softcapping", {}, "supported: null"},
          {"query_pre_attn_scalar", {}, "supported: null"},
          {"embedding_multiplier", {1.0}, "supported: 1.0"},
          {"residual_multiplier", {1.0}, "supported: 1.0"},
          {"attention_multiplier", {}, "supported: null"},
          {"logits_scaling", {1.0}, "supported: 1.0"},
          {"logit_scale", {1.0}, "supported: 1.0"},
          {"num_experts", {0}, "mixtures of experts are not supported"},
          {"num_local_experts", {0}, "mixtures of experts are not supported"}};
}

// Values that are not implemented are refused rather than ignored.
void refuse_unsupported(const ConfigFields& fields) {
  const std::string act = fields.text("hidden_act", "silu");
  if (act != "silu" && act != "swish") fields.fail("hidden_act", act, "supported: silu");
  for (const NeutralValues& neutral : neutral_values()) {
    const ConfigJson* value = fields.find(neutral.key);
    if (value == nullptr) continue;
    const bool accepted = std::any_of(neutral.values.begin(), neutral.values.end(),
                                      [&](const ConfigJson& allowed) { return *value == allowed; });
    if (!accepted) fields.fail(neutral.key, *value, neutral.expected);
  }
}

std::vector<int64_t> parse_token_ids(const ConfigFields& fields, const char* key) {
  const ConfigJson* value = fields.find(key);
  if (value == nullptr) return {};
  const ConfigJson list = value->is_array() ? *value : ConfigJson::array({*value});
  std::vector<int64_t> ids;
  for (const ConfigJson& id : list) {
    if (!id.is_number_integer())
      fields.fail(key, *value, "expected a token id or a list of token ids");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

int64_t default_kv_heads(const ConfigFields& fields, const ModelConfig& config) {
  if (fields.present("num_key_value_heads")) return config.num_attention_heads;  // an explicit null
  if (config.family == Family::kLlama) return config.num_attention_heads;
  return config.family == Family::kMistral ? 8 : 32;
}

// Larger than any model's; three of them still multiply to an int64.
constexpr int64_t kMaxSize = 1 << 20;

// A size that memory is taken by.
int64_t parse_size(const ConfigFields& fields, const char* key, std::optional<int64_t> fallback,
                   int64_t maximum = kMaxSize) {
  const int64_t size = fields.integer(key, fallback, 1);
  if (size > maximum) fields.fail(key, size, "expected at most " + std::to_string(maximum));
  return size;
}

// The heads of Qwen3 have a size of their own; in the other families they divide the hidden size.
int64_t parse_head_dim(const ConfigFields& fields, const ModelConfig& config) {
  const int64_t derived =
      config.family == Family::kQwen3
          ? 128
          : config.hidden_size / std::max<int64_t>(1, config.num_attention_heads);
  if (fields.find("head_dim") == nullptr && config.family != Family::kQwen3 &&
      config.hidden_size % config.num_attention_heads != 0) {
    fields.fail("hidden_size", config.hidden_size,
                "it must be a multiple of num_attention_heads unless head_dim is set");
  }
  const int64_t head_dim = parse_size(fields, "head_dim", derived);
  if (head_dim % 2 != 0)
    fields.fail("head_dim", head_dim, "rotary embeddings need an even head_dim");
  return head_dim;
}

int64_t default_positions(Family family) {
  if (family == Family::kLlama) return 2048;
  return family == Family::kMistral ? 131072 : 32768;
}

void parse_shapes(const ConfigFields& fields, ModelConfig& config) {
  constexpr int64_t kMaxIds = std::numeric_limits<int32_t>::max();  // token ids are int32
  config.vocab_size = parse_size(fields, "vocab_size", std::nullopt, kMaxIds);
  config.hidden_size = parse_size(fields, "hidden_size", std::nullopt);
  config.intermediate_size = parse_size(fields, "intermediate_size", std::nullopt);
  config.num_hidden_layers = parse_size(fields, "num_hidden_layers", std::nullopt, 10'000);
  config.num_attention_heads = parse_size(fields, "num_attention_heads", std::nullopt);
  config.num_key_value_heads =
      parse_size(fields, "num_key_value_heads", default_kv_heads(fields, config));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail(
        "num_key_value_heads", config.num_key_value_heads,
        "it must divide num_attention_heads = " + std::to_string(config.num_attention_heads));
  }
  config.head_dim = parse_head_dim(fields, config);
  config.max_position_embeddings =
      fields.integer("max_position_embeddings", default_positions(config.family), 1);
}

std::string parse_file_dtype(const ConfigFields& fields) {
  const char* key = fields.find("dtype") ? "dtype" : "torch_dtype";
  const std::string name = fields.text(key, "float32");
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    fields.fail(key, name, "supported: float32, bfloat16, float16");
  }
  return name;
}

ModelConfig parse_fields(const ConfigFields& fields) {
  ModelConfig config;
  config.family = parse_family(fields);
  refuse_unsupported(fields);
  parse_shapes(fields, config);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6, 0.0);
  config.initializer_range = fields.number("initializer_range", 0.02, 0.0);
  config.rope = parse_rope(fields, config.max_position_embeddings);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  const bool bias = fields.boolean("attention_bias", false);
  const bool has_bias_key = config.family == Family::kLlama || config.family == Family::kQwen3;
  config.attention_bias = config.family == Family::kQwen2 || (has_bias_key && bias);
  config.attention_out_bias = has_bias_key && bias;
  config.mlp_bias = config.family == Family::kLlama && fields.boolean("mlp_bias", false);
  config.qk_norm = config.family == Family::kQwen3;
  config.sliding_window = parse_windows(fields, config);
  config.torch_dtype = parse_file_dtype(fields);
  config.bos_token_id = fields.integer("bos_token_id", -1, -1);
  config.pad_token_id = fields.integer("pad_token_id", -1, -1);
  config.eos_token_ids = parse_token_ids(fields, "eos_token_id");
  return config;
}

void write_dtype(ConfigJson& json, const std::string& dtype) {
  const bool old_style = json.contains("torch_dtype") || json.contains("rope_theta");
  json[!json.contains("dtype") && old_style ? "torch_dtype" : "dtype"] = dtype;
}

ConfigJson fresh_config(const ModelConfig& config) {
  static const char* const kArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM",
                                               "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
  ConfigJson json;
  json["architectures"] = ConfigJson::array({kArchitectures[static_cast<int>(config.family)]});
  json["model_type"] = family_name(config.family);
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
  json["use_cache"] = true;
  json["bos_token_id"] =
      config.bos_token_id >= 0 ? ConfigJson(config.bos_token_id) : ConfigJson(nullptr);
  json["pad_token_id"] =
      config.pad_token_id >= 0 ? ConfigJson(config.pad_token_id) : ConfigJson(nullptr);
  json["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  return json;
}

}  // namespace

ModelConfig parse_model_config(const std::string& json, const std::string& origin) {
  const ConfigJson object = parse_config_object(json, origin);
  ModelConfig config = parse_fields(ConfigFields(object, "", origin));
  config.raw_json = json;
  for (const auto& [key, value] : object.items()) {
    if (!known_keys().contains(key)) config.unknown_keys.push_back(key);
  }
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  ModelConfig config = parse_model_config(read_file(path), path.string());
  const std::filesystem::path generation = folder / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const std::string origin = generation.string();
    const ConfigJson object = parse_config_object(read_file(generation), origin);
    const std::vector<int64_t> ids =
        parse_token_ids(ConfigFields(object, "", origin), "eos_token_id");
    if (!ids.empty()) config.eos_token_ids = ids;
  }
  return config;
}

std::string write_model_config(const ModelConfig& config) {
  const bool fresh = config.raw_json.empty();
  const std::string origin = "config.json";
  ConfigJson json = fresh ? fresh_config(config) : parse_config_object(config.raw_json, origin);
  const ModelConfig before = fresh ? ModelConfig{} : parse_fields(ConfigFields(json, "", origin));
  RETORT_CHECK(fresh || config.family == before.family)
      << "the family of a config cannot be changed";

  // A key is written where the value differs, so that all others keep their text and their place.
  const auto set = [&](const char* key, const auto& value, const auto& old) {
    if (fresh || value != old) json[key] = value;
  };
  set("vocab_size", config.vocab_size, before.vocab_size);
  set("hidden_size", config.hidden_size, before.hidden_size);
  set("intermediate_size", config.intermediate_size, before.intermediate_size);
  set("num_hidden_layers", config.num_hidden_layers, before.num_hidden_layers);
  set("num_attention_heads", config.num_attention_heads, before.num_attention_heads);
  set("num_key_value_heads", config.num_key_value_heads, before.num_key_value_heads);
  set("head_dim", config.head_dim, before.head_dim);
  set("max_position_embeddings", config.max_position_embeddings, before.max_position_embeddings);

  // What is not a size; the bias keys exist in some families only.
  set("rms_norm_eps", config.rms_norm_eps, before.rms_norm_eps);
  set("initializer_range", config.initializer_range, before.initializer_range);
  set("tie_word_embeddings", config.tie_word_embeddings, before.tie_word_embeddings);
  if (config.family == Family::kLlama || config.family == Family::kQwen3) {
    set("attention_bias", config.attention_bias, before.attention_bias);
  }
  if (config.family == Family::kLlama) set("mlp_bias", config.mlp_bias, before.mlp_bias);

  // These take several keys, whose names depend on the style that was read.
  if (fresh || !same_rope(config.rope, before.rope)) write_rope(json, config.rope);
  if (fresh || config.sliding_window != before.sliding_window) write_windows(json, config);
  if (!fresh) {  // a fresh config has its token ids already
    set("bos_token_id", config.bos_token_id, before.bos_token_id);
    set("pad_token_id", config.pad_token_id, before.pad_token_id);
  }
  if (fresh || config.torch_dtype != before.torch_dtype) write_dtype(json, config.torch_dtype);
  return json.dump(2) + "\n";
}

std::string describe_function(const ModelConfig& config) {
  std::ostringstream text;
  text.precision(17);  // enough for every double
  const Rope& rope = config.rope;
  for (const int64_t size :
       {static_cast<int64_t>(config.family), config.vocab_size, config.hidden_size,
        config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, config.head_dim})
    text << size << ' ';
  for (const bool flag : {config.tie_word_embeddings, config.attention_bias,
                          config.attention_out_bias, config.mlp_bias, config.qk_norm})
    text << flag << ' ';
  text << config.rms_norm_eps << ' ' << rope.type << ' ' << rope.theta << ' ' << rope.factor << ' '
       << rope.low_freq_factor << ' ' << rope.high_freq_factor << ' '
       << rope.original_max_position_embeddings;
  for (const int64_t window : config.sliding_window)
    text << ' ' << window;
  return text.str();
}

}  // namespace retort::models
