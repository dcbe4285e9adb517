// A message of a conversation may say itself whether it is learned. Trainers have five names for
// that: `weight` (OpenAI, Mistral, axolotl), `loss` (ms-swift), `train`, `loss_mask` (verl, slime)
// and `trainable`; 1 or true: learned, 0 or false: only read.
#pragma once

#include <string>
#include <string_view>

#include "models/text/chat_template.h"
#include "recipes/data/detail/row.h"

namespace retort::data::detail {

// Takes the targets of the answers that are switched off out of `tokens`, which are those of
// `messages`, and says whether there are such answers. kInvalidArgument for a value that is no
// switch, for a message that is not the assistant's and is switched on, and where the template does
// not say which tokens are of which message.
bool apply_loss_switches(const Json& messages, const models::ChatTemplate& chat,
                         const std::string& variables, models::ChatTokens& tokens);

// For messages [begin, end) of the column `name`, which are all learned or all only read: one whose
// switch says otherwise is refused, with the reason `why`.
struct MessageRange {
  size_t begin = 0;
  size_t end = std::string::npos;
};
void expect_loss_switches(const Json& messages, std::string_view name, MessageRange range,
                          bool learned, const std::string& why);

// For a conversation that serves generation: the answers before the last are read as they are, and
// the last one, the reference, must not be switched off.
void check_loss_switches_of_prompt(const Json& messages);

// Copies the switches of a sharegpt turn (`where`, for messages) to the message made from it.
void copy_loss_switches(const Json& turn, const std::string& where, Json& message);

}  // namespace retort::data::detail
