// What a chat template writes behind the end token of an answer.
#pragma once

#include <cstdint>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/rewards/reward.h"

namespace retort::recipes {

// A generator stops at the end token; a conversation that a reward model was trained on goes on: in
// ChatML with a line break, and its score was learned there. TRL's GRPOTrainer renders prompt and
// completion again for the same reason (_calculate_rewards).
// Threads: any.
class AnswerEnding {
 public:
  // `max_length`: tokens of a row (data.max_length), where a training row was cut as well.
  AnswerEnding(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer,
               int64_t max_length);

  // The ids of a completion as a reward model reads them. Of messages: where its last token is an
  // end token of the template, with what the template writes behind that. Of strings, and cut or
  // stopped otherwise, as by a text that the template writes behind an end token, too: as it was
  // drawn.
  std::vector<int32_t> completion_of(const rewards::RewardInput& input) const;

 private:
  std::vector<int32_t> behind_content_;  // of a rendered answer: its end token, and so on
  std::vector<int32_t> end_signs_;       // those of them at which a completion may end
  int64_t max_length_;
};

}  // namespace retort::recipes
