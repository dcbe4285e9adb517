#include "models/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "models/config_keys.h"

namespace retort::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSupportedFamilies = "llama, mistral, qwen2, qwen3";

// One config.json and the name under which it appears in messages. A null value counts as an absent
// key.
class Fields {
 public:
  Fields(const Json& object, std::string prefix, const std::string& origin)
      : object_(object), prefix_(std::move(prefix)), origin_(origin) {}

  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool present(const char* key) const { return object_.contains(key); }  // null counts

  [[noreturn]] void fail(const std::string& key, const Json& value,
                         const std::string& expected) const {
    throw Error(ErrorCode::kInvalidArgument, origin_ + ": " + prefix_ + key + " = " + value.dump() +
                                                 " is not supported; " + expected)
        .with("file", origin_)
        .with("key", prefix_ + key)
        .with("value", value.dump());
  }

  int64_t integer(const char* key, std::optional<int64_t> fallback, int64_t minimum) const {
    const Json* value = find(key);
    if (value == nullptr) {
      if (fallback) return *fallback;
      throw Error(ErrorCode::kInvalidArgument,
                  origin_ + ": the key '" + prefix_ + key + "' is missing")
          .with("file", origin_)
          .with("key", prefix_ + key);
    }
    if (!value->is_number_integer() || value->get<int64_t>() < minimum) {
      fail(key, *value, "expected an integer of at least " + std::to_string(minimum));
    }
    return value->get<int64_t>();
  }
  double number(const char* key, double fallback, double minimum) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= minimum))
      fail(key, *value, "expected a positive number");
    return value->get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, *value, "expected true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, *value, "expected a string");
    return value->get<std::string>();
  }
  const std::string& origin() const { return origin_; }
  const Json& object() const { return object_; }

 private:
  const Json& object_;
  std::string prefix_;
  const std::string& origin_;
};

Json parse_object(const std::string& text, const std::string& origin) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::kInvalidArgument, origin + ": not valid JSON: " + e.what())
        .with("file", origin);
  }
  if (!json.is_object()) {
    throw Error(ErrorCode::kInvalidArgument, origin + ": expected a JSON object")
        .with("file", origin);
  }
  return json;
}

Family parse_family(const Fields& fields) {
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

// Values that change what the model computes and are not implemented: refused rather than ignored.
void refuse_unsupported(const Fields& fields) {
  const std::string act = fields.text("hidden_act", "silu");
  if (act != "silu" && act != "swish") fields.fail("hidden_act", act, "supported: silu");
  struct Neutral {
    const char* key;
    std::vector<Json> values;
    const char* expected;
  };
  const std::vector<Neutral> neutrals{
      {"pretraining_tp", {1}, "supported: 1"},
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
  for (const Neutral& neutral : neutrals) {
    const Json* value = fields.find(neutral.key);
    if (value == nullptr) continue;
    const bool accepted = std::any_of(neutral.values.begin(), neutral.values.end(),
                                      [&](const Json& allowed) { return *value == allowed; });
    if (!accepted) fields.fail(neutral.key, *value, neutral.expected);
  }
}

Rope parse_rope(const Fields& fields, int64_t max_positions) {
  Rope rope;
  rope.theta = fields.number("rope_theta", rope.theta, 1.0);
  const char* key = fields.find("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Json* object = fields.find(key);
  if (object == nullptr) return rope;
  if (!object->is_object()) fields.fail(key, *object, "expected an object");
  if (object->contains("full_attention") || object->contains("sliding_attention")) {
    fields.fail(key, *object, "supported: one rotary embedding for all layers");
  }
  const Fields scaling(*object, std::string(key) + ".", fields.origin());
  rope.type = scaling.text("rope_type", scaling.text("type", "default"));
  rope.theta = scaling.number("rope_theta", rope.theta, 1.0);
  if (scaling.number("partial_rotary_factor", 1.0, 0.0) != 1.0) {
    scaling.fail("partial_rotary_factor", *scaling.find("partial_rotary_factor"), "supported: 1.0");
  }
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "llama3") {
    scaling.fail(scaling.find("rope_type") ? "rope_type" : "type", rope.type,
                 "supported: default, linear, llama3");
  }
  if (!scaling.find("factor"))
    scaling.fail("factor", nullptr, "the rope type '" + rope.type + "' needs it");
  rope.factor = scaling.number("factor", 1.0, 1.0);
  if (rope.type == "linear") return rope;
  for (const char* needed : {"low_freq_factor", "high_freq_factor"}) {
    if (!scaling.find(needed)) scaling.fail(needed, nullptr, "the rope type 'llama3' needs it");
  }
  rope.low_freq_factor = scaling.number("low_freq_factor", 1.0, 1e-6);
  rope.high_freq_factor = scaling.number("high_freq_factor", 4.0, 1e-6);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.fail("high_freq_factor", rope.high_freq_factor,
                 "it must be larger than low_freq_factor");
  }
  rope.original_max_position_embeddings =
      fields.integer("original_max_position_embeddings",
                     scaling.integer("original_max_position_embeddings", max_positions, 1), 1);
  return rope;
}

std::vector<int64_t> parse_windows(const Fields& fields, const ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  std::vector<int64_t> windows(layers, 0);
  if (config.family == Family::kLlama) return windows;
  if (config.family == Family::kMistral) {
    const int64_t window =
        fields.present("sliding_window") ? fields.integer("sliding_window", 0, 1) : 4096;
    std::fill(windows.begin(), windows.end(), window);
    return windows;
  }
  const bool used = fields.boolean("use_sliding_window", false);
  int64_t window = 0;
  if (used)
    window = fields.present("sliding_window") ? fields.integer("sliding_window", 0, 1) : 4096;
  const Json* types = fields.find("layer_types");
  if (types == nullptr) {
    const int64_t full = fields.integer("max_window_layers", 28, 0);
    for (size_t i = 0; i < layers; ++i)
      windows[i] = static_cast<int64_t>(i) >= full ? window : 0;
    return windows;
  }
  if (!types->is_array() || types->size() != layers) {
    fields.fail("layer_types", *types,
                "expected one entry for each of the " + std::to_string(layers) + " layers");
  }
  for (size_t i = 0; i < layers; ++i) {
    const Json& type = (*types)[i];
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      fields.fail("layer_types", type, "supported: full_attention, sliding_attention");
    }
    if (window == 0) {
      fields.fail("layer_types", type,
                  "sliding layers need use_sliding_window: true and a sliding_window");
    }
    windows[i] = window;
  }
  return windows;
}

std::vector<int64_t> parse_token_ids(const Fields& fields, const char* key) {
  const Json* value = fields.find(key);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<int64_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer())
      fields.fail(key, *value, "expected a token id or a list of token ids");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

int64_t default_kv_heads(const Fields& fields, const ModelConfig& config) {
  if (fields.present("num_key_value_heads")) return config.num_attention_heads;  // an explicit null
  if (config.family == Family::kLlama) return config.num_attention_heads;
  return config.family == Family::kMistral ? 8 : 32;
}

void parse_shapes(const Fields& fields, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size", std::nullopt, 1);
  config.hidden_size = fields.integer("hidden_size", std::nullopt, 1);
  config.intermediate_size = fields.integer("intermediate_size", std::nullopt, 1);
  config.num_hidden_layers = fields.integer("num_hidden_layers", std::nullopt, 1);
  config.num_attention_heads = fields.integer("num_attention_heads", std::nullopt, 1);
  config.num_key_value_heads =
      fields.integer("num_key_value_heads", default_kv_heads(fields, config), 1);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail(
        "num_key_value_heads", config.num_key_value_heads,
        "it must divide num_attention_heads = " + std::to_string(config.num_attention_heads));
  }
  const int64_t derived =
      config.family == Family::kQwen3
          ? 128
          : config.hidden_size / std::max<int64_t>(1, config.num_attention_heads);
  if (fields.find("head_dim") == nullptr && config.family != Family::kQwen3 &&
      config.hidden_size % config.num_attention_heads != 0) {
    fields.fail("hidden_size", config.hidden_size,
                "it must be a multiple of num_attention_heads unless head_dim is set");
  }
  config.head_dim = fields.integer("head_dim", derived, 1);
  if (config.head_dim % 2 != 0)
    fields.fail("head_dim", config.head_dim, "rotary embeddings need an even head_dim");
  const int64_t positions = config.family == Family::kLlama     ? 2048
                            : config.family == Family::kMistral ? 131072
                                                                : 32768;
  config.max_position_embeddings = fields.integer("max_position_embeddings", positions, 1);
}

std::string parse_file_dtype(const Fields& fields) {
  const char* key = fields.find("dtype") ? "dtype" : "torch_dtype";
  const std::string name = fields.text(key, "float32");
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    fields.fail(key, name, "supported: float32, bfloat16, float16");
  }
  return name;
}

ModelConfig parse_fields(const Fields& fields) {
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

// --- writing back ---

Json rope_object(const Rope& rope, bool with_theta) {
  Json json{{"rope_type", rope.type}};
  if (with_theta) json["rope_theta"] = rope.theta;
  if (rope.type != "default") json["factor"] = rope.factor;
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  return json;
}

bool same_rope(const Rope& a, const Rope& b) {
  return a.type == b.type && a.theta == b.theta && a.factor == b.factor &&
         a.low_freq_factor == b.low_freq_factor && a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

void write_rope(Json& json, const Rope& rope) {
  // the style of transformers 4
  if (json.contains("rope_theta") || json.contains("rope_scaling")) {
    json["rope_theta"] = rope.theta;
    json["rope_scaling"] = rope.type == "default" ? Json(nullptr) : rope_object(rope, false);
    json.erase("rope_parameters");
  } else {
    json["rope_parameters"] = rope_object(rope, true);
  }
}

void write_windows(Json& json, const ModelConfig& config) {
  if (config.family == Family::kLlama) return;
  const auto widest = std::max_element(config.sliding_window.begin(), config.sliding_window.end());
  const int64_t window = widest == config.sliding_window.end() ? 0 : *widest;
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  if (config.family == Family::kMistral) return;
  json["use_sliding_window"] = window > 0;
  Json types = Json::array();
  for (int64_t w : config.sliding_window)
    types.push_back(w > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
}

void write_dtype(Json& json, const std::string& dtype) {
  const bool old_style = json.contains("torch_dtype") || json.contains("rope_theta");
  json[!json.contains("dtype") && old_style ? "torch_dtype" : "dtype"] = dtype;
}

Json fresh_config(const ModelConfig& config) {
  static const char* const kArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM",
                                               "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
  Json json;
  json["architectures"] = Json::array({kArchitectures[static_cast<int>(config.family)]});
  json["model_type"] = family_name(config.family);
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
  json["use_cache"] = true;
  json["bos_token_id"] = config.bos_token_id >= 0 ? Json(config.bos_token_id) : Json(nullptr);
  json["pad_token_id"] = config.pad_token_id >= 0 ? Json(config.pad_token_id) : Json(nullptr);
  json["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  return json;
}

}  // namespace

ModelConfig parse_model_config(const std::string& json, const std::string& origin) {
  const Json object = parse_object(json, origin);
  ModelConfig config = parse_fields(Fields(object, "", origin));
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
    const Json object = parse_object(read_file(generation), origin);
    const std::vector<int64_t> ids = parse_token_ids(Fields(object, "", origin), "eos_token_id");
    if (!ids.empty()) config.eos_token_ids = ids;
  }
  return config;
}

std::string write_model_config(const ModelConfig& config) {
  const bool fresh = config.raw_json.empty();
  const std::string origin = "config.json";
  Json json = fresh ? fresh_config(config) : parse_object(config.raw_json, origin);
  const ModelConfig before = fresh ? ModelConfig{} : parse_fields(Fields(json, "", origin));
  auto set = [&](const char* key, const auto& value, const auto& old) {
    if (fresh || value != old) json[key] = value;
  };
  RETORT_CHECK(fresh || config.family == before.family)
      << "the family of a config cannot be changed";
  set("vocab_size", config.vocab_size, before.vocab_size);
  set("hidden_size", config.hidden_size, before.hidden_size);
  set("intermediate_size", config.intermediate_size, before.intermediate_size);
  set("num_hidden_layers", config.num_hidden_layers, before.num_hidden_layers);
  set("num_attention_heads", config.num_attention_heads, before.num_attention_heads);
  set("num_key_value_heads", config.num_key_value_heads, before.num_key_value_heads);
  set("head_dim", config.head_dim, before.head_dim);
  set("max_position_embeddings", config.max_position_embeddings, before.max_position_embeddings);
  set("rms_norm_eps", config.rms_norm_eps, before.rms_norm_eps);
  set("initializer_range", config.initializer_range, before.initializer_range);
  set("tie_word_embeddings", config.tie_word_embeddings, before.tie_word_embeddings);
  if (config.family == Family::kLlama || config.family == Family::kQwen3) {
    set("attention_bias", config.attention_bias, before.attention_bias);
  }
  if (config.family == Family::kLlama) set("mlp_bias", config.mlp_bias, before.mlp_bias);
  if (fresh || !same_rope(config.rope, before.rope)) write_rope(json, config.rope);
  if (fresh || config.sliding_window != before.sliding_window) write_windows(json, config);
  if (!fresh) {
    set("bos_token_id", config.bos_token_id, before.bos_token_id);
    set("pad_token_id", config.pad_token_id, before.pad_token_id);
  }
  if (fresh || config.torch_dtype != before.torch_dtype) write_dtype(json, config.torch_dtype);
  return json.dump(2) + "\n";
}

std::string describe_function(const ModelConfig& config) {
  std::ostringstream text;
  text.precision(17);
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
