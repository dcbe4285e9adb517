#include "models/config/rope_keys.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "models/config/families.h"

namespace retort::models {
namespace {

constexpr const char* kTypes = "supported: default, linear, dynamic, llama3, yarn, longrope";
constexpr double kSmallest = 1e-6;  // of what divides or is divided by

// A scaling may have these keys. `finetuned` stands in older files and says nothing of the
// function.
const std::set<std::string>& scaling_keys() {
  static const std::set<std::string> keys{"rope_type",        "type",
                                          "rope_theta",       "partial_rotary_factor",
                                          "factor",           "original_max_position_embeddings",
                                          "low_freq_factor",  "high_freq_factor",
                                          "attention_factor", "beta_fast",
                                          "beta_slow",        "mscale",
                                          "mscale_all_dim",   "truncate",
                                          "short_factor",     "long_factor",
                                          "finetuned"};
  return keys;
}

// One scaling while it is read.
struct Scaling {
  const ConfigFields& outer;  // of the whole file
  const ConfigFields& own;    // of the object
  const ModelConfig& config;
  Rope& rope;

  void need(const char* key) const {
    if (!own.find(key)) own.fail(key, nullptr, "the rope type '" + rope.type + "' needs it");
  }
  void parse_type() const;
  void parse_original_length() const;
  void parse_factor() const;
  void parse_llama3() const;
  void parse_yarn() const;
  void parse_longrope() const;
  std::vector<double> divisors(const char* key) const;
};

// "type" is the older name of "rope_type"; Phi-3 calls longrope by two older names.
void Scaling::parse_type() const {
  rope.type = own.text("rope_type", own.text("type", "default"));
  const FamilyTraits& family = family_traits(config.family);
  if (family.only_longrope && (rope.type == "su" || rope.type == "yarn")) rope.type = "longrope";
  static const std::set<std::string> kKnown{"default", "linear", "dynamic",
                                            "llama3",  "yarn",   "longrope"};
  const char* key = own.find("rope_type") ? "rope_type" : "type";
  if (!kKnown.contains(rope.type)) own.fail(key, rope.type, kTypes);
  if (family.only_longrope && rope.type != "default" && rope.type != "longrope")
    own.fail(key, rope.type,
             std::string("supported in ") + family.model_type + ": default, longrope");
}

// The key of the whole file goes before that of the object, as in Phi-3.
void Scaling::parse_original_length() const {
  rope.original_max_position_embeddings = outer.integer(
      "original_max_position_embeddings",
      own.integer("original_max_position_embeddings", config.max_position_embeddings, 1), 1);
}

// Yarn and longrope take the ratio of the two contexts where no factor is given.
void Scaling::parse_factor() const {
  if (rope.type == "yarn" || rope.type == "longrope") {
    if (!own.find("factor")) {
      rope.factor = static_cast<double>(config.max_position_embeddings) /
                    static_cast<double>(rope.original_max_position_embeddings);
      return;
    }
  } else {
    need("factor");
  }
  rope.factor = own.number("factor", 1.0, rope.type == "longrope" ? kSmallest : 1.0);
}

// Llama 3 interpolates wavelengths between context / high_freq_factor and context /
// low_freq_factor.
void Scaling::parse_llama3() const {
  need("low_freq_factor");
  need("high_freq_factor");
  rope.low_freq_factor = own.number("low_freq_factor", 1.0, kSmallest);
  rope.high_freq_factor = own.number("high_freq_factor", 4.0, kSmallest);
  if (rope.high_freq_factor <= rope.low_freq_factor)
    own.fail("high_freq_factor", rope.high_freq_factor, "it must be larger than low_freq_factor");
}

// Follows Peng et al. 2023, section 3.4; mscale and mscale_all_dim are as in DeepSeek.
void Scaling::parse_yarn() const {
  const auto mscale = [&](double weight) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(rope.factor) + 1.0;
  };
  const double numerator = own.number("mscale", 0.0, 0.0);
  const double denominator = own.number("mscale_all_dim", 0.0, 0.0);
  const double inferred =
      numerator > 0 && denominator > 0 ? mscale(numerator) / mscale(denominator) : mscale(1.0);
  rope.attention_factor = own.number("attention_factor", inferred, kSmallest);

  rope.beta_fast = own.number("beta_fast", 32.0, kSmallest);
  rope.beta_slow = own.number("beta_slow", 1.0, kSmallest);
  if (rope.beta_fast < rope.beta_slow)
    own.fail("beta_fast", rope.beta_fast, "it must not be smaller than beta_slow");
  rope.truncate = own.boolean("truncate", true);
  if (rope.theta <= 1.0) own.fail("rope_theta", rope.theta, "yarn needs one above 1");
}

std::vector<double> Scaling::divisors(const char* key) const {
  need(key);
  const ConfigJson& list = *own.find(key);
  const auto count = static_cast<size_t>(rope.rotary_dim(config.head_dim) / 2);
  const auto fine = [](const ConfigJson& value) {
    return value.is_number() && value.get<double>() >= kSmallest;
  };
  if (!list.is_array() || list.size() != count || !std::all_of(list.begin(), list.end(), fine))
    own.fail(key, list, "expected " + std::to_string(count) + " positive numbers");
  return list.get<std::vector<double>>();
}

// Follows Ding et al. 2024; the factor of cos and sin is as in Phi-3.
void Scaling::parse_longrope() const {
  rope.short_factor = divisors("short_factor");
  rope.long_factor = divisors("long_factor");
  double inferred = 1.0;
  if (rope.factor > 1.0) {
    const auto original = static_cast<double>(rope.original_max_position_embeddings);
    if (original < 2)
      own.fail("original_max_position_embeddings", original, "longrope needs at least 2");
    inferred = std::sqrt(1.0 + std::log(rope.factor) / std::log(original));
  }
  rope.attention_factor = own.number("attention_factor", inferred, kSmallest);
}

// Not every family may rotate a part of each head.
void parse_partial_rotation(const ConfigFields& outer, const ConfigFields* own,
                            const ModelConfig& config, Rope& rope) {
  const ConfigFields& where = own && own->find("partial_rotary_factor") ? *own : outer;
  rope.partial_rotary_factor = where.number("partial_rotary_factor", 1.0, 0.0);
  if (rope.partial_rotary_factor == 1.0) return;
  const ConfigJson& value = *where.find("partial_rotary_factor");
  if (!family_traits(config.family).partial_rotation)
    where.fail("partial_rotary_factor", value, "supported: 1.0");
  const int64_t dims = rope.rotary_dim(config.head_dim);
  if (rope.partial_rotary_factor > 1.0 || dims < 2 || dims % 2 != 0)
    where.fail("partial_rotary_factor", value,
               "of head_dim " + std::to_string(config.head_dim) +
                   " an even number of dimensions must rotate");
}

// Reads one rotary embedding; `object` is null where the file has none.
Rope parse_rope(const ConfigFields& fields, const std::string& name, const ConfigJson* object,
                double theta, const ModelConfig& config) {
  Rope rope;
  rope.theta = theta;
  if (object == nullptr) {
    parse_partial_rotation(fields, nullptr, config, rope);
    return rope;
  }
  if (!object->is_object()) fields.fail(name, *object, "expected an object");
  const ConfigFields own(*object, name + ".", fields.origin());
  for (const auto& [key, value] : object->items())
    if (!scaling_keys().contains(key)) own.fail(key, value, "the key is not known");

  // Every type has these.
  const Scaling scaling{fields, own, config, rope};
  scaling.parse_type();
  rope.theta = own.number("rope_theta", rope.theta, 1.0);
  parse_partial_rotation(fields, &own, config, rope);
  if (rope.type == "default") return rope;

  // Only some types have these.
  if (rope.type == "dynamic") {
    rope.original_max_position_embeddings = config.max_position_embeddings;
    if (config.head_dim <= 2) own.fail("rope_type", rope.type, "it needs a head_dim above 2");
  } else if (rope.type != "linear") {
    scaling.parse_original_length();
  }
  scaling.parse_factor();
  if (rope.type == "llama3") scaling.parse_llama3();
  if (rope.type == "yarn") scaling.parse_yarn();
  if (rope.type == "longrope") scaling.parse_longrope();
  return rope;
}

// Tells whether rope_parameters has an embedding for each kind of layers.
bool is_nested(const ConfigJson& object) {
  return object.is_object() &&
         (object.contains("full_attention") || object.contains("sliding_attention"));
}

// Reads two embeddings: one for layers without a window, and one for those with one.
void parse_two_ropes(const ConfigFields& fields, const FamilyTraits& family, ModelConfig& config) {
  const double global = fields.number("rope_theta", family.rope_theta, 1.0);
  const double local = fields.number("rope_local_base_freq", *family.sliding_rope_theta, 1.0);
  const ConfigJson* parameters = fields.find("rope_parameters");
  if (parameters == nullptr) {
    config.rope = parse_rope(fields, "rope_scaling", fields.find("rope_scaling"), global, config);
    config.sliding_rope = parse_rope(fields, "rope_local_base_freq", nullptr, local, config);
    return;
  }

  // This is the style of transformers 5.
  if (!is_nested(*parameters))
    fields.fail("rope_parameters", *parameters,
                "expected an object with full_attention and sliding_attention");
  const ConfigFields both(*parameters, "rope_parameters.", fields.origin());
  for (const auto& [key, value] : parameters->items())
    if (key != "full_attention" && key != "sliding_attention")
      both.fail(key, value, "the key is not known");
  config.rope = parse_rope(fields, "rope_parameters.full_attention", both.find("full_attention"),
                           global, config);
  config.sliding_rope = parse_rope(fields, "rope_parameters.sliding_attention",
                                   both.find("sliding_attention"), local, config);
}

ConfigJson rope_object(const Rope& rope, bool with_theta) {
  ConfigJson json{{"rope_type", rope.type}};
  if (with_theta) json["rope_theta"] = rope.theta;
  if (rope.partial_rotary_factor != 1.0) json["partial_rotary_factor"] = rope.partial_rotary_factor;
  if (rope.type != "default") json["factor"] = rope.factor;
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "yarn") {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["truncate"] = rope.truncate;
  }
  if (rope.type == "longrope") {
    json["short_factor"] = rope.short_factor;
    json["long_factor"] = rope.long_factor;
  }
  if (rope.type == "yarn" || rope.type == "longrope")
    json["attention_factor"] = rope.attention_factor;
  if (rope.type == "llama3" || rope.type == "yarn" || rope.type == "longrope")
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  return json;
}

}  // namespace

void parse_ropes(const ConfigFields& fields, ModelConfig& config) {
  const FamilyTraits& family = family_traits(config.family);
  if (family.sliding_rope_theta) return parse_two_ropes(fields, family, config);
  const double theta = fields.number("rope_theta", family.rope_theta, 1.0);

  // Either style keeps the scaling in one object, which a plain embedding may lack.
  const char* key = fields.find("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const ConfigJson* object = fields.find(key);
  if (object != nullptr && is_nested(*object))
    fields.fail(key, *object, "supported: one rotary embedding for all layers");
  config.rope = parse_rope(fields, key, object, theta, config);
}

void write_ropes(ConfigJson& json, const ModelConfig& config) {
  const bool style_4 = json.contains("rope_theta") || json.contains("rope_scaling") ||
                       json.contains("rope_local_base_freq");
  if (!style_4) {
    json["rope_parameters"] = rope_object(config.rope, true);
    if (config.sliding_rope)
      json["rope_parameters"] = {{"full_attention", rope_object(config.rope, true)},
                                 {"sliding_attention", rope_object(*config.sliding_rope, true)}};
    return;
  }

  // This is the style of transformers 4.
  const bool plain = config.rope.type == "default";
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = plain ? ConfigJson(nullptr) : rope_object(config.rope, false);
  if (config.sliding_rope) json["rope_local_base_freq"] = config.sliding_rope->theta;
  if (json.contains("original_max_position_embeddings"))
    json["original_max_position_embeddings"] = config.rope.original_max_position_embeddings;
  json.erase("rope_parameters");
}

}  // namespace retort::models
