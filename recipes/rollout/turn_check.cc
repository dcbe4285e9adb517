#include "recipes/rollout/turn_check.h"

#include <cstdint>
#include <vector>

#include "base/json_text.h"
#include "base/options.h"
#include "models/text/turn_suffix.h"
#include "recipes/run/inputs/episode_options.h"

namespace retort::recipes {
namespace {

// An answer that is seen in whatever the template makes of it.
constexpr const char* kAnswer = R"([{"role": "tool", "name": "add", "content": "5"}])";

}  // namespace

std::string describe_turns(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer) {
  const models::TurnSuffix suffix(chat, tokenizer);
  const int32_t end = suffix.end_of_turn();
  const std::vector<int32_t> ids = suffix.ids(kAnswer);
  std::string list, mask;
  for (const int32_t id : ids) {
    list += " " + std::to_string(id);
    mask += " 0";
  }

  // Specials are shown: they are what joins the turns.
  return "a turn ends with " + std::to_string(end) + " " +
         json_quote(tokenizer.decode(std::vector<int32_t>{end}, /*skip_special_tokens=*/false)) +
         ", which has a loss as all that the student says; before the next one a tool that answers "
         "5 is ids" +
         list + ", mask" + mask + ": " +
         json_quote(tokenizer.decode(ids, /*skip_special_tokens=*/false));
}

void check_turns(SelfCheck& check, const Recipe& recipe) {
  if (!recipe.environment) return;
  const models::LoadedModel& student = check.student();
  check.check("tool format", true,
              std::string(enum_name(tool_format(*recipe.environment, student.chat))) +
                  (recipe.environment->format() ? "" : ", as the chat template teaches it"));
  check.check("turns", true, describe_turns(student.chat, student.tokenizer));
}

}  // namespace retort::recipes
