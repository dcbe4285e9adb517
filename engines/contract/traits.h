// Engines of a kind can do this, whatever their version, settings and model: it is known before one
// is asked. What a server gives beyond that it says itself (Engine::abilities), and the probe
// finds.
#pragma once

#include <string>
#include <string_view>

#include "engines/contract/options.h"

namespace retort::engines {

// When an engine bars the end tokens among the first tokens of a completion.
enum class FirstTokens { kNeverBarred, kBarredWithoutStopTexts, kBarred };

struct EngineTraits {
  std::string_view program;  // as people call it: "llama.cpp"

  // What it is asked for.
  bool words_alone = false;    // texts for texts: no ids, so no tokenizer, and no numbers
  bool draws = false;          // completions, of a generator
  bool named_ids = false;      // log-probabilities at ids that the student names
  bool hidden_states = false;  // the final ones
  bool rewards = false;        // a number for a completion
  // How a generator's weights follow the student.
  WeightRoute weights = WeightRoute::kNone;
  // Its tensors have names of the server's choice: external.tensors.
  bool own_tensor_names = false;

  // Draws: what it means by their options (draw_support.h).
  bool typical_p = false;
  bool penalises_completions = false;  // for the tokens of the completion, not those of the prompt
  FirstTokens min_new_tokens = FirstTokens::kNeverBarred;
  // Log-probabilities of what it drew can be those of the temperature at which it drew.
  bool tempered_draws = false;

  // Options of its command line, for advice; "": it needs or has none.
  std::string_view processed_flag{};  // log-probabilities of the distribution that is drawn from
  std::string_view top_k_flag{};      // the largest number of ids that are listed, or named
};

const EngineTraits& traits_of(EngineKind kind);

// The kinds of which `test` holds, in the order of their names, for messages.
using TraitTest = bool (*)(const EngineTraits& traits);
std::string engines_that(TraitTest test);   // as a recipe names them: "vllm, sglang or llamacpp"
std::string programs_that(TraitTest test);  // as people call them: "vLLM, SGLang, llama.cpp"

}  // namespace retort::engines
