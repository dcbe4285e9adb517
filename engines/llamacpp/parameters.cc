#include "engines/llamacpp/parameters.h"

#include <cmath>
#include <string_view>

#include "base/error.h"
#include "engines/contract/draw_support.h"
#include "engines/contract/options.h"

namespace retort::engines::llamacpp {
namespace {

// This is more than any logits are apart. Above it float32 no longer tells neighbouring logits from
// each other, which does not matter for the one token that is raised over all others.
constexpr double kForcingBias = 1e6;

// These stay off whatever is asked for. Samplers that `samplers` does not name (dry, xtc,
// typical_p, ...) do nothing, but these act without being named.
Json everything_off() {
  return {{"mirostat", 0},
          {"dynatemp_range", 0.0},
          {"presence_penalty", 0.0},
          {"frequency_penalty", 0.0},
          {"min_keep", 0},
          {"ignore_eos", false},
          {"backend_sampling", false},
          {"post_sampling_probs", false},
          {"grammar", ""},
          {"t_max_predict_ms", 0},
          {"n_indent", 0},
          {"stream", false},
          {"return_tokens", true},
          {"cache_prompt", true}};
}

// The server keeps numbers in float32, so it repeats them rounded.
bool same(const Json& asked, const Json& used) {
  if (asked.is_number() && used.is_number()) {
    const double a = asked.get<double>();
    const double b = used.get<double>();
    return std::abs(a - b) <= 1e-6 * std::max(1.0, std::abs(a));
  }
  return asked == used;
}

}  // namespace

Json draw_parameters(const models::DrawOptions& how, uint32_t seed, int64_t prompt_tokens,
                     int64_t new_tokens, int64_t vocab_rows) {
  const models::SamplingOptions& sampling = how.sampling;
  sampling.validate();
  check_draw_support(EngineKind::kLlamacpp, how);
  for (const std::string& stop : how.stop)
    if (stop.empty()) throw Error(ErrorCode::kInvalidArgument, "stop: an empty text ends nothing");

  Json parameters = everything_off();
  parameters["n_predict"] = new_tokens;
  parameters["n_probs"] = 1;
  parameters["seed"] = seed;
  parameters["stop"] = how.stop;
  parameters["temperature"] = sampling.temperature;
  parameters["top_k"] = sampling.top_k;
  parameters["top_p"] = sampling.top_p;
  parameters["min_p"] = sampling.min_p;
  // The penalty counts prompt and completion, as ours does: the server looks back as far as both
  // are long.
  parameters["repeat_penalty"] = sampling.repetition_penalty;
  parameters["repeat_last_n"] = prompt_tokens + new_tokens;
  parameters["samplers"] = {"penalties", "temperature", "top_k", "top_p", "min_p"};
  if (sampling.typical_p < 1) {
    parameters["typical_p"] = sampling.typical_p;
    parameters["samplers"].push_back("typ_p");
  }

  // Ids beyond the tokenizer's are only padding of the head, and must not be drawn.
  Json barred = Json::array();
  if (sampling.num_ids > 0)
    for (int64_t id = sampling.num_ids; id < vocab_rows; ++id)
      barred.push_back({id, false});
  parameters["logit_bias"] = std::move(barred);
  return parameters;
}

Json forcing_parameters(int32_t id, int64_t num_top) {
  Json parameters = everything_off();
  parameters["n_predict"] = 1;
  parameters["n_probs"] = num_top;
  parameters["temperature"] = 0.0;
  parameters["samplers"] = {"temperature"};
  parameters["logit_bias"] = Json::array({Json::array({id, kForcingBias})});
  return parameters;
}

void check_settings(const Json& parameters, const Json& settings) {
  for (const std::string_view needed : {"seed", "temperature", "samplers", "top_k"})
    if (!settings.contains(needed))
      refuse_field("generation_settings." + std::string(needed), "is missing");

  for (const auto& [name, asked] : parameters.items()) {
    const auto used = settings.find(name);
    if (used == settings.end()) continue;
    // The server writes a barred token's bias as null: their number must do.
    const bool agrees = name == "logit_bias" ? used->is_array() && used->size() == asked.size()
                                             : same(asked, *used);
    if (!agrees)
      throw Error(ErrorCode::kMismatch, "the server drew with " + name + " " + excerpt(*used) +
                                            " where " + excerpt(asked) +
                                            " was asked for; see its command line and version");
  }
}

}  // namespace retort::engines::llamacpp
