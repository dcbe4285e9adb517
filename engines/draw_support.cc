#include "engines/draw_support.h"

#include "base/error.h"

namespace retort::engines {
namespace {

constexpr const char* kOurs = ", or a generator of ours (`model`)";

std::optional<UnsupportedOption> unsupported_by_llamacpp(const models::DrawOptions& how) {
  const std::string counts =
      "llama.cpp counts the tokens of the prompt too, and we those of the completion alone; use 0, "
      "vLLM, SGLang";
  if (how.sampling.presence_penalty != 0)
    return UnsupportedOption{"presence_penalty", counts + kOurs};
  if (how.sampling.frequency_penalty != 0)
    return UnsupportedOption{"frequency_penalty", counts + kOurs};
  if (how.min_new_tokens > 0)
    return UnsupportedOption{
        "min_new_tokens",
        "llama.cpp bars no end token for the first tokens alone; use 0, vLLM, SGLang" +
            std::string(kOurs)};
  return std::nullopt;
}

}  // namespace

std::optional<UnsupportedOption> unsupported_option(EngineKind engine,
                                                    const models::DrawOptions& how) {
  if (engine == EngineKind::kLlamacpp) return unsupported_by_llamacpp(how);
  if (how.sampling.typical_p < 1)
    return UnsupportedOption{"typical_p", std::string(enum_name(engine)) +
                                              " does not draw so; use 1, llama.cpp" + kOurs};
  // A stop text within the first tokens ends its completions, and ours not.
  const bool has_texts = !how.stop.empty();
  if (engine == EngineKind::kSglang && how.min_new_tokens > 0 && has_texts)
    return UnsupportedOption{
        "min_new_tokens",
        "sglang ends a completion at a stop text within the first tokens too; use 0, no "
        "stop, vLLM" +
            std::string(kOurs)};
  return std::nullopt;
}

void check_draw_support(EngineKind engine, const models::DrawOptions& how) {
  if (const auto unsupported = unsupported_option(engine, how))
    throw Error(ErrorCode::kInvalidArgument, unsupported->key + ": " + unsupported->why);
}

}  // namespace retort::engines
