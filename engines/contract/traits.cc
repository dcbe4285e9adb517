#include "engines/contract/traits.h"

#include <vector>

#include "base/error.h"

namespace retort::engines {
namespace {

constexpr EngineTraits kVllm{.program = "vLLM",
                             .draws = true,
                             .named_ids = true,
                             .weights = WeightRoute::kFolder,
                             .penalises_completions = true,
                             .min_new_tokens = FirstTokens::kBarred,
                             .tempered_draws = true,
                             .processed_flag = "--logprobs-mode processed_logprobs",
                             .top_k_flag = "--max-logprobs"};

constexpr EngineTraits kSglang{.program = "SGLang",
                               .draws = true,
                               .weights = WeightRoute::kFolder,
                               .penalises_completions = true,
                               .min_new_tokens = FirstTokens::kBarredWithoutStopTexts,
                               .tempered_draws = true};

constexpr EngineTraits kLlamacpp{
    .program = "llama.cpp", .draws = true, .weights = WeightRoute::kGguf, .typical_p = true};

constexpr EngineTraits kKserve{
    .program = "KServe", .hidden_states = true, .rewards = true, .own_tensor_names = true};

constexpr EngineTraits kOpenai{.program = "OpenAI's chat completions", .words_alone = true};

std::vector<EngineKind> kinds_that(TraitTest test) {
  std::vector<EngineKind> kinds;
  for (const auto& [name, kind] : EnumNames<EngineKind>::values)
    if (test(traits_of(kind))) kinds.push_back(kind);
  return kinds;
}

}  // namespace

const EngineTraits& traits_of(EngineKind kind) {
  switch (kind) {
    case EngineKind::kVllm: return kVllm;
    case EngineKind::kSglang: return kSglang;
    case EngineKind::kLlamacpp: return kLlamacpp;
    case EngineKind::kKserve: return kKserve;
    case EngineKind::kOpenai: return kOpenai;
  }
  throw Error(ErrorCode::kInvalidArgument, "an engine that is none");
}

std::string engines_that(TraitTest test) {
  const std::vector<EngineKind> kinds = kinds_that(test);
  std::string text;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (i > 0) text += i + 1 < kinds.size() ? ", " : " or ";
    text += enum_name(kinds[i]);
  }
  return text;
}

std::string programs_that(TraitTest test) {
  std::string text;
  for (const EngineKind kind : kinds_that(test)) {
    if (!text.empty()) text += ", ";
    text += traits_of(kind).program;
  }
  return text;
}

}  // namespace retort::engines
