// A recipe's `environment:` block: samples are episodes, in which a role answers the student's
// turns.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/options.h"
#include "base/units.h"
#include "models/text/tool_calls.h"

namespace retort::recipes {

// The words in which the student calls tools; auto: those of its chat template.
enum class ToolFormatChoice { kAuto, kHermes, kQwen3Xml, kLlama3Json, kPythonic };

struct EnvironmentOptions {
  std::string role = "tools";
  int64_t max_turns = 8;
  int64_t max_tokens = 4096;
  Duration timeout{60'000};
  Duration episode_timeout{600'000};
  ToolFormatChoice tool_format = ToolFormatChoice::kAuto;

  template <class V>
  void fields(V& visit) {
    visit("role", role, "the role that answers turns; it has an `environment`");
    visit("max_turns", max_turns,
          "turns of the student in an episode, at most; each has up to generation.max_new_tokens "
          "tokens. An episode whose last one still calls tools counts as cut");
    visit("max_tokens", max_tokens,
          "tokens of an episode behind its prompt, those of the environment's answers too; an "
          "answer that would pass it is dropped, and the episode ends before it, as one that was "
          "cut. The prompt, with what the environment adds, has data.max_length less this");
    visit("timeout", timeout, "of each answer of the environment");
    visit("episode_timeout", episode_timeout,
          "that an episode waits for its environment in all; after it, as after a lost "
          "environment, the episode begins anew, twice at most; then it cannot be scored");
    visit("tool_format", tool_format,
          "how the student writes calls of tools; auto: as its chat template teaches them");
  }
  // kInvalidArgument naming the field: ranges.
  void validate() const;
  // Without value for auto.
  std::optional<models::ToolFormat> format() const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::ToolFormatChoice> {
  using E = retort::recipes::ToolFormatChoice;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{
      {{"auto", E::kAuto},
       {"hermes", E::kHermes},
       {"qwen3_xml", E::kQwen3Xml},
       {"llama3_json", E::kLlama3Json},
       {"pythonic", E::kPythonic}}};
};
