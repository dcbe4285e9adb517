// Which options of a draw an engine does not know, or means otherwise than we do.
#pragma once

#include <optional>
#include <string>

#include "engines/contract/options.h"
#include "models/generation/request.h"

namespace retort::engines {

struct UnsupportedOption {
  std::string key;  // as a recipe's `generation:` names it
  std::string why;  // and what would do
};

// The first option of `how` that is set and that engines of this kind, which draw, cannot be asked
// for, whatever their version and settings; nothing: they can. What only some values rule out the
// adapters refuse themselves. EngineTraits says which; what is sent under which name:
//
//   key                 vllm               sglang             llamacpp
//   typical_p           -                  -                  typical_p, with the sampler typ_p
//   presence_penalty    presence_penalty   presence_penalty   - (it counts the prompt too)
//   frequency_penalty   frequency_penalty  frequency_penalty  - (likewise)
//   min_new_tokens      min_tokens         min_new_tokens,    -
//                                          without stop texts
std::optional<UnsupportedOption> unsupported_option(EngineKind engine,
                                                    const models::DrawOptions& how);

// kInvalidArgument "key: why" where there is one.
void check_draw_support(EngineKind engine, const models::DrawOptions& how);

}  // namespace retort::engines
