// What messages make of the traits of engines. They name engines as people read them, so that each
// text stands here as a whole.
#include "engines/contract/traits.h"

#include <gtest/gtest.h>

#include <string>

#include "engines/contract/draw_support.h"
#include "engines/contract/options.h"

namespace retort::engines {
namespace {

TEST(EngineTraits, AreListedInTheOrderOfTheirNames) {
  EXPECT_EQ(engines_that([](const EngineTraits&) { return true; }),
            "vllm, sglang, llamacpp, kserve or openai");
  EXPECT_EQ(engines_that([](const EngineTraits& t) { return t.draws; }),
            "vllm, sglang or llamacpp");
  EXPECT_EQ(engines_that([](const EngineTraits& t) { return !t.words_alone; }),
            "vllm, sglang, llamacpp or kserve");
  EXPECT_EQ(engines_that([](const EngineTraits& t) { return t.rewards; }), "kserve");
  EXPECT_EQ(engines_that([](const EngineTraits& t) { return t.named_ids; }), "vllm");
  EXPECT_EQ(engines_that([](const EngineTraits&) { return false; }), "");
  EXPECT_EQ(programs_that([](const EngineTraits& t) { return t.draws; }),
            "vLLM, SGLang, llama.cpp");
  EXPECT_EQ(programs_that([](const EngineTraits& t) { return t.named_ids; }), "vLLM");
}

TEST(EngineTraits, WhoDrawsFollowsTheStudent) {
  for (const auto& [name, kind] : EnumNames<EngineKind>::values) {
    const EngineTraits& traits = traits_of(kind);
    EXPECT_EQ(traits.draws, traits.weights != WeightRoute::kNone) << name;
    EXPECT_FALSE(traits.program.empty()) << name;
    const bool numbers = traits.draws || traits.named_ids || traits.hidden_states || traits.rewards;
    EXPECT_FALSE(traits.words_alone && numbers) << name;
  }
}

// "key: why" of what an engine cannot be asked for; "": it can.
std::string unsupported(EngineKind kind, const models::DrawOptions& how) {
  const auto found = unsupported_option(kind, how);
  return found ? found->key + ": " + found->why : "";
}

TEST(EngineTraits, DrawsSayWhoWouldDo) {
  models::DrawOptions plain, typical, presence, frequency, first_tokens, stopped;
  typical.sampling.typical_p = 0.9;
  presence.sampling.presence_penalty = 0.5;
  frequency.sampling.frequency_penalty = -0.5;
  first_tokens.min_new_tokens = 2;
  stopped.min_new_tokens = 2;
  stopped.stop = {"end"};

  constexpr EngineKind vllm = EngineKind::kVllm, sglang = EngineKind::kSglang,
                       llamacpp = EngineKind::kLlamacpp;
  EXPECT_EQ(unsupported(llamacpp, plain), "");
  EXPECT_EQ(unsupported(llamacpp, typical), "");
  EXPECT_EQ(unsupported(vllm, typical),
            "typical_p: vllm does not draw so; use 1, llama.cpp, or a generator of ours (`model`)");

  const std::string counts =
      "_penalty: llama.cpp counts the tokens of the prompt too, and we those of the completion "
      "alone; use 0, vLLM, SGLang, or a generator of ours (`model`)";
  EXPECT_EQ(unsupported(llamacpp, presence), "presence" + counts);
  EXPECT_EQ(unsupported(llamacpp, frequency), "frequency" + counts);
  EXPECT_EQ(unsupported(sglang, presence), "");
  EXPECT_EQ(unsupported(vllm, frequency), "");

  EXPECT_EQ(unsupported(llamacpp, first_tokens),
            "min_new_tokens: llama.cpp bars no end token for the first tokens alone; use 0, vLLM, "
            "SGLang, or a generator of ours (`model`)");
  EXPECT_EQ(unsupported(sglang, first_tokens), "");
  EXPECT_EQ(unsupported(sglang, stopped),
            "min_new_tokens: sglang ends a completion at a stop text within the first tokens too; "
            "use 0, no stop, vLLM, or a generator of ours (`model`)");
  EXPECT_EQ(unsupported(vllm, stopped), "");
}

}  // namespace
}  // namespace retort::engines
