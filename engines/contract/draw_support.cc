#include "engines/contract/draw_support.h"

#include "base/error.h"
#include "engines/contract/traits.h"

namespace retort::engines {
namespace {

// "; use 0, vLLM, SGLang, or a generator of ours": the value, or the engine, that would do.
std::string use(const std::string& value, TraitTest others) {
  return "; use " + value + ", " + programs_that(others) + ", or a generator of ours (`model`)";
}

}  // namespace

std::optional<UnsupportedOption> unsupported_option(EngineKind engine,
                                                    const models::DrawOptions& how) {
  const EngineTraits& traits = traits_of(engine);
  const std::string name(enum_name(engine)), program(traits.program);
  if (how.sampling.typical_p < 1 && !traits.typical_p)
    return UnsupportedOption{
        "typical_p", name + " does not draw so" +
                         use("1", [](const EngineTraits& other) { return other.typical_p; })};

  const bool presence = how.sampling.presence_penalty != 0;
  if ((presence || how.sampling.frequency_penalty != 0) && !traits.penalises_completions)
    return UnsupportedOption{
        presence ? "presence_penalty" : "frequency_penalty",
        program + " counts the tokens of the prompt too, and we those of the completion alone" +
            use("0", [](const EngineTraits& other) { return other.penalises_completions; })};

  if (how.min_new_tokens <= 0) return std::nullopt;
  if (traits.min_new_tokens == FirstTokens::kNeverBarred)
    return UnsupportedOption{"min_new_tokens",
                             program + " bars no end token for the first tokens alone" +
                                 use("0", [](const EngineTraits& other) {
                                   return other.min_new_tokens != FirstTokens::kNeverBarred;
                                 })};
  // Such an engine ends a completion at a stop text within the first tokens; ours goes on.
  if (traits.min_new_tokens == FirstTokens::kBarredWithoutStopTexts && !how.stop.empty())
    return UnsupportedOption{
        "min_new_tokens", name + " ends a completion at a stop text within the first tokens too" +
                              use("0, no stop", [](const EngineTraits& other) {
                                return other.min_new_tokens == FirstTokens::kBarred;
                              })};
  return std::nullopt;
}

void check_draw_support(EngineKind engine, const models::DrawOptions& how) {
  if (const auto unsupported = unsupported_option(engine, how))
    throw Error(ErrorCode::kInvalidArgument, unsupported->key + ": " + unsupported->why);
}

}  // namespace retort::engines
