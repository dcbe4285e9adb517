#include "models/config_rope.h"

#include <string>

namespace retort::models {
namespace {

// "type" is the older name of "rope_type".
void check_rope_type(const ConfigFields& scaling, const std::string& type) {
  if (type != "linear" && type != "llama3") {
    scaling.fail(scaling.find("rope_type") ? "rope_type" : "type", type,
                 "supported: default, linear, llama3");
  }
}

// Llama 3: wavelengths between context / high_freq_factor and context / low_freq_factor are
// interpolated.
void parse_llama3_bands(const ConfigFields& fields, const ConfigFields& scaling,
                        int64_t max_positions, Rope& rope) {
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
}

ConfigJson rope_object(const Rope& rope, bool with_theta) {
  ConfigJson json{{"rope_type", rope.type}};
  if (with_theta) json["rope_theta"] = rope.theta;
  if (rope.type != "default") json["factor"] = rope.factor;
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  return json;
}

}  // namespace

Rope parse_rope(const ConfigFields& fields, int64_t max_positions) {
  Rope rope;
  rope.theta = fields.number("rope_theta", rope.theta, 1.0);

  // Either style keeps the scaling in one object, which a plain embedding may lack.
  const char* key = fields.find("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const ConfigJson* object = fields.find(key);
  if (object == nullptr) return rope;
  if (!object->is_object()) fields.fail(key, *object, "expected an object");
  if (object->contains("full_attention") || object->contains("sliding_attention")) {
    fields.fail(key, *object, "supported: one rotary embedding for all layers");
  }

  // What every type has.
  const ConfigFields scaling(*object, std::string(key) + ".", fields.origin());
  rope.type = scaling.text("rope_type", scaling.text("type", "default"));
  rope.theta = scaling.number("rope_theta", rope.theta, 1.0);
  if (scaling.number("partial_rotary_factor", 1.0, 0.0) != 1.0) {
    scaling.fail("partial_rotary_factor", *scaling.find("partial_rotary_factor"), "supported: 1.0");
  }
  if (rope.type == "default") return rope;

  // The two scalings, of which only Llama 3's depends on the frequency.
  check_rope_type(scaling, rope.type);
  if (!scaling.find("factor"))
    scaling.fail("factor", nullptr, "the rope type '" + rope.type + "' needs it");
  rope.factor = scaling.number("factor", 1.0, 1.0);
  if (rope.type == "llama3") parse_llama3_bands(fields, scaling, max_positions, rope);
  return rope;
}

bool same_rope(const Rope& a, const Rope& b) {
  return a.type == b.type && a.theta == b.theta && a.factor == b.factor &&
         a.low_freq_factor == b.low_freq_factor && a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

void write_rope(ConfigJson& json, const Rope& rope) {
  // the style of transformers 4
  if (json.contains("rope_theta") || json.contains("rope_scaling")) {
    json["rope_theta"] = rope.theta;
    json["rope_scaling"] = rope.type == "default" ? ConfigJson(nullptr) : rope_object(rope, false);
    json.erase("rope_parameters");
  } else {
    json["rope_parameters"] = rope_object(rope, true);
  }
}

}  // namespace retort::models
