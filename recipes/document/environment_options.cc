#include "recipes/document/environment_options.h"

#include "recipes/document/refuse.h"

namespace retort::recipes {

void EnvironmentOptions::validate() const {
  if (max_turns < 1) refuse_option("max_turns must be at least 1");
  if (max_tokens < 1) refuse_option("max_tokens must be at least 1");
  if (timeout <= Duration(0)) refuse_option("timeout must be positive");
  if (episode_timeout < timeout)
    refuse_option("episode_timeout must be at least timeout, " + format_duration(timeout));
}

std::optional<models::ToolFormat> EnvironmentOptions::format() const {
  switch (tool_format) {
    case ToolFormatChoice::kAuto: break;
    case ToolFormatChoice::kHermes: return models::ToolFormat::kHermes;
    case ToolFormatChoice::kQwen3Xml: return models::ToolFormat::kQwen3Xml;
    case ToolFormatChoice::kLlama3Json: return models::ToolFormat::kLlama3Json;
    case ToolFormatChoice::kPythonic: return models::ToolFormat::kPythonic;
  }
  return std::nullopt;
}

}  // namespace retort::recipes
