#include "recipes/run/inputs/episode_options.h"

#include <string>
#include <vector>

#include "base/error.h"

namespace retort::recipes {

models::ToolFormat tool_format(const EnvironmentOptions& environment,
                               const models::ChatTemplate& chat) {
  if (const auto format = environment.format()) return *format;
  const std::string& own = chat.tool_use_source();
  const std::vector<models::ToolFormat> found =
      models::tool_formats_of(own.empty() ? chat.source() : own);
  if (found.size() == 1) return found.front();
  if (found.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "auto finds no tool format in the chat template (hermes, qwen3_xml, llama3_json, "
                "pythonic are known); write one of them, or give data.chat_template a template "
                "with tools");

  std::string names;
  for (const models::ToolFormat format : found)
    names += (names.empty() ? "" : " and ") + std::string(enum_name(format));
  throw Error(ErrorCode::kInvalidArgument,
              "auto finds " + names + " in the chat template; write one of them");
}

Duration longest_wait(const EnvironmentOptions& environment) {
  return (1 + roles::EpisodeOptions().restarts) * environment.episode_timeout;
}

roles::EpisodeOptions episode_options(const Recipe& recipe, const models::ChatTemplate& chat) {
  const EnvironmentOptions& environment = *recipe.environment;
  roles::EpisodeOptions options;
  options.max_turns = environment.max_turns;
  options.max_tokens = environment.max_tokens;
  options.max_prompt_tokens = recipe.data.max_length - environment.max_tokens;
  options.timeout = environment.timeout;
  options.episode_timeout = environment.episode_timeout;
  options.format = tool_format(environment, chat);
  return options;
}

}  // namespace retort::recipes
