#include "models/config/config.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "models/config/classifier.h"
#include "models/config/config_fields.h"
#include "models/config/families.h"
#include "models/config/rope_keys.h"
#include "models/config/windows.h"

namespace retort::models {
namespace {

Family parse_family(const ConfigFields& fields) {
  const std::string type = fields.text("model_type", "");
  if (const FamilyTraits* found = find_family(type)) return found->family;
  fields.fail("model_type", type, "supported model types: " + known_model_types());
}

constexpr const char* kKnownKeys[] = {
    // Which model and which software.
    "model_type", "architectures", "transformers_version", "_name_or_path", "use_cache",
    "return_dict",
    // Sizes.
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
    // Layers.
    "hidden_act", "initializer_range", "rms_norm_eps", "tie_word_embeddings", "attention_bias",
    "mlp_bias", "attention_dropout", "hidden_activation", "query_pre_attn_scalar",
    "attn_logit_softcapping", "final_logit_softcapping",
    // Positions and windows.
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "original_max_position_embeddings",
    "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern",
    // The file's dtype and its token ids.
    "torch_dtype", "dtype", "bos_token_id", "eos_token_id", "pad_token_id",
    // Labels of a classifier.
    "num_labels", "id2label", "label2id", "problem_type",
    // Accepted at the value that changes nothing.
    "pretraining_tp", "quantization_config", "is_encoder_decoder", "resid_pdrop", "embd_pdrop",
    "use_bidirectional_attention"};

// These keys are read here, or do not change the function of the decoder.
const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys(std::begin(kKnownKeys), std::end(kKnownKeys));
  return keys;
}

// Names a key that changes what the model computes and is not implemented, with the values at which
// it changes nothing.
struct NeutralValues {
  const char* key;
  std::vector<ConfigJson> values;
  const char* expected;
};

std::vector<NeutralValues> neutral_values(const FamilyTraits& family) {
  std::vector<NeutralValues> list{
      {"pretraining_tp", {1}, "supported: 1"},
      {"quantization_config", {}, "supported: none; load the unquantised checkpoint"},
      {"attention_dropout", {0.0}, "supported: 0.0"},
      {"hidden_dropout", {0.0}, "supported: 0.0"},
      {"resid_pdrop", {0.0}, "supported: 0.0"},
      {"embd_pdrop", {0.0}, "supported: 0.0"},
      {"is_encoder_decoder", {false}, "supported: false"},
      {"is_causal", {true}, "supported: true"},
      {"use_bidirectional_attention", {false}, "supported: false"},
      {"embedding_multiplier", {1.0}, "supported: 1.0"},
      {"residual_multiplier", {1.0}, "supported: 1.0"},
      {"attention_multiplier", {}, "supported: null"},
      {"logits_scaling", {1.0}, "supported: 1.0"},
      {"logit_scale", {1.0}, "supported: 1.0"},
      {"num_experts", {0}, "mixtures of experts are not supported"},
      {"num_local_experts", {0}, "mixtures of experts are not supported"}};

  // Only some families have these.
  if (!family.attn_logit_softcapping)
    list.push_back({"attn_logit_softcapping", {}, "supported: null"});
  if (!family.final_logit_softcapping)
    list.push_back({"final_logit_softcapping", {}, "supported: null"});
  if (!family.query_pre_attn_scalar)
    list.push_back({"query_pre_attn_scalar", {}, "supported: null"});
  if (family.biases == BiasKeys::kRefused)
    list.push_back({"attention_bias", {false}, "supported: false"});
  return list;
}

const char* activation_name(Activation activation) {
  return activation == Activation::kGeluTanh ? "gelu_pytorch_tanh" : "silu";
}

// Gemma calls it hidden_activation; older files name it a second time as hidden_act.
void check_activation(const ConfigFields& fields, const FamilyTraits& family) {
  const std::string expected = activation_name(family.activation);
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::string act = fields.text(key, expected);
    const bool other_name = family.activation == Activation::kSilu && act == "swish";
    if (act != expected && !other_name) fields.fail(key, act, "supported: " + expected);
  }
}

// Values that are not implemented are refused rather than ignored.
void refuse_unsupported(const ConfigFields& fields, const FamilyTraits& family) {
  check_activation(fields, family);
  for (const NeutralValues& neutral : neutral_values(family)) {
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
  const int64_t silent = family_traits(config.family).num_key_value_heads;
  const bool null = fields.present("num_key_value_heads");  // where it is not found
  return null || silent == 0 ? config.num_attention_heads : silent;
}

// This is larger than any size of a model, and the product of three such sizes still fits an int64.
constexpr int64_t kMaxSize = 1 << 20;

// Reads a size that memory is taken by, which must have a bound.
int64_t parse_size(const ConfigFields& fields, const char* key, std::optional<int64_t> fallback,
                   int64_t maximum = kMaxSize) {
  const int64_t size = fields.integer(key, fallback, 1);
  if (size > maximum) fields.fail(key, size, "expected at most " + std::to_string(maximum));
  return size;
}

// In some families the heads have a size of their own; in the others they divide the hidden size.
int64_t parse_head_dim(const ConfigFields& fields, const ModelConfig& config) {
  const int64_t silent = family_traits(config.family).head_dim;
  if (silent == 0 && fields.find("head_dim") == nullptr &&
      config.hidden_size % config.num_attention_heads != 0) {
    fields.fail("hidden_size", config.hidden_size,
                "it must be a multiple of num_attention_heads unless head_dim is set");
  }
  const int64_t derived = std::max<int64_t>(1, config.hidden_size / config.num_attention_heads);
  const int64_t head_dim = parse_size(fields, "head_dim", silent > 0 ? silent : derived);
  if (head_dim % 2 != 0)
    fields.fail("head_dim", head_dim, "rotary embeddings need an even head_dim");
  return head_dim;
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
  config.max_position_embeddings = fields.integer(
      "max_position_embeddings", family_traits(config.family).max_position_embeddings, 1);
}

std::string parse_file_dtype(const ConfigFields& fields) {
  const char* key = fields.find("dtype") ? "dtype" : "torch_dtype";
  const std::string name = fields.text(key, "float32");
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    fields.fail(key, name, "supported: float32, bfloat16, float16");
  }
  return name;
}

// Reads a token id that the file may leave out; an explicit null says that there is none.
int64_t parse_token_id(const ConfigFields& fields, const char* key, int64_t silent) {
  return fields.integer(key, fields.present(key) ? -1 : silent, -1);
}

// Reads what the attention and the head of some families have of their own; a null takes a cap off.
void parse_score_numbers(const ConfigFields& fields, const FamilyTraits& family,
                         ModelConfig& config) {
  constexpr double kLeast = 1e-6;
  const auto cap = [&](const char* key, const std::optional<double>& silent) {
    return silent ? fields.number(key, fields.present(key) ? 0.0 : *silent, kLeast) : 0.0;
  };
  if (const std::optional<double> silent = family.query_pre_attn_scalar)
    config.query_pre_attn_scalar = fields.number("query_pre_attn_scalar", *silent, kLeast);
  config.attn_logit_softcapping = cap("attn_logit_softcapping", family.attn_logit_softcapping);
  config.final_logit_softcapping = cap("final_logit_softcapping", family.final_logit_softcapping);
}

bool has_bias_key(const FamilyTraits& family) {
  return family.biases == BiasKeys::kAttention || family.biases == BiasKeys::kAttentionMlp;
}

void parse_biases(const ConfigFields& fields, const FamilyTraits& family, ModelConfig& config) {
  const bool bias = has_bias_key(family) && fields.boolean("attention_bias", false);
  config.attention_bias = family.biases == BiasKeys::kQkvAlways || bias;
  config.attention_out_bias = bias;
  config.mlp_bias = family.biases == BiasKeys::kAttentionMlp && fields.boolean("mlp_bias", false);
}

ModelConfig parse_fields(const ConfigFields& fields) {
  ModelConfig config;
  config.family = parse_family(fields);
  const FamilyTraits& family = family_traits(config.family);
  apply_family(config);
  refuse_unsupported(fields, family);
  parse_shapes(fields, config);

  // The other numbers are not sizes.
  config.rms_norm_eps = fields.number("rms_norm_eps", family.rms_norm_eps, 0.0);
  config.initializer_range = fields.number("initializer_range", 0.02, 0.0);
  parse_ropes(fields, config);
  config.classifier = parse_classifier(fields);
  // The numbers that a classifier gives a sequence are no rows of the embedding.
  config.tie_word_embeddings =
      !config.classifies() && fields.boolean("tie_word_embeddings", family.tie_word_embeddings);
  parse_score_numbers(fields, family, config);
  parse_biases(fields, family, config);
  config.sliding_window = parse_windows(fields, config);

  // The file's dtype and its token ids.
  config.torch_dtype = parse_file_dtype(fields);
  config.bos_token_id = parse_token_id(fields, "bos_token_id", family.bos_token_id);
  const int64_t pad = family.pad_token_id < config.vocab_size ? family.pad_token_id : -1;
  config.pad_token_id = parse_token_id(fields, "pad_token_id", pad);
  config.eos_token_ids = parse_token_ids(fields, "eos_token_id");
  if (!fields.present("eos_token_id") && family.eos_token_id >= 0)
    config.eos_token_ids = {family.eos_token_id};
  return config;
}

void write_dtype(ConfigJson& json, const std::string& dtype) {
  const bool old_style = json.contains("torch_dtype") || json.contains("rope_theta");
  json[!json.contains("dtype") && old_style ? "torch_dtype" : "dtype"] = dtype;
}

ConfigJson fresh_config(const ModelConfig& config) {
  const FamilyTraits& family = family_traits(config.family);
  ConfigJson json;
  json["architectures"] = ConfigJson::array({family.architecture});
  json["model_type"] = family.model_type;
  json[family.activation_key] = activation_name(family.activation);
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

// Writes what parse_score_numbers reads, where it differs from what was read; `before` is null for
// a fresh config.
void write_score_numbers(ConfigJson& json, const ModelConfig& config, const ModelConfig* before) {
  const FamilyTraits& family = family_traits(config.family);
  const auto set_cap = [&](const char* key, double ModelConfig::*cap) {
    if (before != nullptr && config.*cap == before->*cap) return;
    json[key] = config.*cap == 0 ? ConfigJson(nullptr) : ConfigJson(config.*cap);
  };
  const double scalar = config.query_pre_attn_scalar;
  const bool scalar_differs = before == nullptr || scalar != before->query_pre_attn_scalar;
  if (family.query_pre_attn_scalar && scalar_differs)
    json["query_pre_attn_scalar"] = scalar > 0 ? ConfigJson(scalar) : ConfigJson(config.head_dim);
  if (family.attn_logit_softcapping)
    set_cap("attn_logit_softcapping", &ModelConfig::attn_logit_softcapping);
  if (family.final_logit_softcapping)
    set_cap("final_logit_softcapping", &ModelConfig::final_logit_softcapping);
}

// Appends a scaling where it differs from that of a plain decoder, so that plain decoders keep
// their text and with it their fingerprint.
void describe_scaling(std::ostringstream& text, const Rope& rope) {
  text << " | " << rope.type << ' ' << rope.theta << ' ' << rope.factor << ' '
       << rope.partial_rotary_factor << ' ' << rope.attention_factor << ' ' << rope.beta_fast << ' '
       << rope.beta_slow << ' ' << rope.truncate << ' ' << rope.original_max_position_embeddings;
  for (const std::vector<double>* divisors : {&rope.short_factor, &rope.long_factor})
    for (const double divisor : *divisors)
      text << ' ' << divisor;
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

  // The end tokens of generation_config.json go before those of config.json.
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

ModelConfig as_classifier(ModelConfig config, int64_t num_labels, int64_t pad_token_id) {
  config.classifier = {.num_labels = num_labels, .pad_token_id = pad_token_id};
  config.tie_word_embeddings = false;
  return config;
}

std::string write_model_config(const ModelConfig& config) {
  const bool fresh = config.raw_json.empty();
  const FamilyTraits& family = family_traits(config.family);
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

  // The others are not sizes; the bias keys exist in some families only.
  set("rms_norm_eps", config.rms_norm_eps, before.rms_norm_eps);
  set("initializer_range", config.initializer_range, before.initializer_range);
  set("tie_word_embeddings", config.tie_word_embeddings, before.tie_word_embeddings);
  if (has_bias_key(family)) set("attention_bias", config.attention_bias, before.attention_bias);
  if (family.biases == BiasKeys::kAttentionMlp) set("mlp_bias", config.mlp_bias, before.mlp_bias);
  write_score_numbers(json, config, fresh ? nullptr : &before);

  // These take several keys, whose names depend on the style that was read.
  if (fresh || config.rope != before.rope || config.sliding_rope != before.sliding_rope)
    write_ropes(json, config);
  if (fresh || config.sliding_window != before.sliding_window) write_windows(json, config);
  if (!fresh) {  // a fresh config has its token ids already
    set("bos_token_id", config.bos_token_id, before.bos_token_id);
    set("pad_token_id", config.pad_token_id, before.pad_token_id);
  }
  if (fresh || config.torch_dtype != before.torch_dtype) write_dtype(json, config.torch_dtype);
  write_classifier(json, config);
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

  // What not every model has is appended only where it is there, so that the others keep their
  // text.
  const bool newer = rope.type != "default" && rope.type != "linear" && rope.type != "llama3";
  if (newer || rope.partial_rotary_factor != 1.0) describe_scaling(text, rope);
  if (config.sliding_rope) describe_scaling(text, *config.sliding_rope);
  if (family_traits(config.family).query_pre_attn_scalar)
    text << " | " << config.query_pre_attn_scalar << ' ' << config.attn_logit_softcapping << ' '
         << config.final_logit_softcapping;
  if (config.classifies())
    text << " labels " << config.classifier.num_labels << " pad " << config.classifier.pad_token_id;
  return text.str();
}

}  // namespace retort::models
