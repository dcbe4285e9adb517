// One episode: what a model and its environment have said to each other, as token ids, and what is
// to be done next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "models/generation/request.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "models/text/tool_calls.h"
#include "models/text/turn_suffix.h"
#include "roles/environment/methods.h"
#include "roles/episodes/conversation.h"
#include "roles/generator/methods.h"

namespace retort::roles {

struct EpisodeOptions {
  int64_t max_turns = 8;          // of the model; calls of the last one are not asked
  int64_t max_tokens = 4096;      // behind the prompt, those of the environment included
  int64_t max_prompt_tokens = 0;  // with what the environment adds to it; 0: the positions' bound
  Duration timeout{60'000};       // of a step, and of a close
  // that an episode may wait for its environment in all; of an open, which may wait for room
  Duration episode_timeout{600'000};
  int64_t restarts = 2;  // of an episode whose environment fails
  models::ToolFormat format = models::ToolFormat::kHermes;

  void validate() const;  // kInvalidArgument naming the field
  // For how long whoever asks waits for a step or a close: a little longer than the environment
  // itself, which says more about a timeout of its own.
  Duration patience() const;
};

// How long an episode waits before it begins anew, this often: its environment may need a moment.
Duration pause_before(int64_t restarts);

// How a model's turns become text, and answers tokens.
struct TurnWords {
  models::ChatTemplate chat;
  models::Tokenizer tokenizer;
  models::TurnSuffix suffix;
};

// Whoever holds one does what next() says, and says what came of it:
//
//   kOpen  -> opened     kDraw -> drawn     kStep -> answered     kClose -> closed     kEnd
//
// and failed() wherever the environment was asked: the episode begins anew, or ends without a
// reward. A turn of the model that has no calls ends it, unless the environment answers those, too;
// so does one that was cut. An answer that would pass the tokens that an episode may have is
// dropped, and the episode ends before it: as TRL's GRPOTrainer.
//
// Tokens: what the model drew is never tokenised again. What stands between two of its turns is
//   rendered by itself (TurnSuffix); a turn that ended with another token than the template's gets
//   that one from the environment.
// Waits for nothing, and has no thread.
class Episode {
 public:
  enum class Next { kOpen, kDraw, kStep, kClose, kEnd };
  // What all episodes of a request have in common; outlives them.
  struct Setting {
    const TurnWords* words = nullptr;
    const EpisodeOptions* options = nullptr;
    models::DrawOptions draw;     // max_new_tokens: of a turn
    uint64_t weight_version = 0;  // that all turns are drawn with
    int64_t positions = 0;        // of the model; 0: it does not say
    bool answers_turns = false;   // without calls (EnvironmentInfo::user_turns)
    std::string environment;      // its name, for errors
  };

  // kInvalidArgument for a row without messages.
  Episode(const Setting& setting, EpisodeStart start);

  Next next() const { return next_; }
  // For kOpen, kStep and kClose; `number` is the environment's for this attempt.
  OpenEpisode to_open(uint64_t number) const;
  EpisodeTurn to_step(uint64_t number) const;
  // For kDraw: the next turn of all episodes that have these tokens so far, one for each sample;
  // `request` is the generator's number of it.
  GenerateRequest to_draw(uint64_t request, int64_t step,
                          const std::vector<int64_t>& sample_ids) const;
  // Its parts: all tokens, how to go on, and how many of them stand behind the prompt.
  const std::vector<int32_t>& ids() const { return ids_; }
  models::DrawOptions draw() const;
  int64_t continues() const { return static_cast<int64_t>(ids_.size()) - prompt_tokens_; }

  // These throw kCorrupt for what no environment may say, and failed() is what follows. opened()
  // also throws kInvalidArgument for a row of which the template makes no prompt that leaves room
  // for an answer, and then the episode is of no use; and kMismatch where the row alone would make
  // one, but not with what the environment begins with, which it would do the next time, too.
  // An episode whose prompt is too long for a row is closed at once, and there is no telling its
  // reward.
  void opened(const OpenedEpisode& opened);
  void answered(const EpisodeAnswer& answer);
  void closed(const ClosedEpisode& closed);
  void drawn(const models::Completion& turn);
  // What the environment was asked came to nothing; `again`: another attempt may come to more.
  void failed(const std::string& why, bool again = true);

  int64_t restarts() const { return restarts_; }
  // Tokens up to the end of the model's last turn, of which a next one may find whole blocks in a
  // cache; 0 before its first.
  int64_t history_tokens() const { return history_tokens_; }
  // Once next() is kEnd: all tokens with their spans, and a JSON object of "reward" (null without
  // one), "metrics", "messages", "turns", "calls" (that the environment was asked), "failed_calls",
  // "malformed" (turns), "restarts" and, if there is no telling its reward, "unscorable": why.
  models::Completion take();

 private:
  void begin();
  void forget_tokens();
  bool refuse_long_prompt();
  int64_t room() const;
  std::vector<int32_t> prompt_of(const Conversation& conversation) const;
  void append(models::SpanSource source, const std::vector<int32_t>& ids);
  void append_numbers(const models::Completion& turn);
  models::ParsedTurn parse(const models::Completion& turn) const;
  std::vector<int32_t> answer_ids(const EpisodeAnswer& answer) const;
  void finish(models::FinishReason reason);
  std::string record() const;

  const Setting* setting_;
  const EpisodeStart start_;
  Next next_ = Next::kOpen;
  int64_t restarts_ = 0;
  std::string unscorable_;  // why

  // Of this attempt:
  Conversation conversation_;
  std::vector<int32_t> ids_;
  std::vector<models::Span> spans_;
  std::vector<float> logps_, sampling_logps_;
  bool knows_logps_ = true, knows_sampling_logps_ = true;
  bool opens_thought_ = false;  // the prompt of each turn
  int64_t prompt_tokens_ = 0, history_tokens_ = 0;
  int64_t turns_ = 0, calls_ = 0, failed_calls_ = 0, malformed_ = 0;
  models::FinishReason finish_reason_ = models::FinishReason::kLength;
  ClosedEpisode result_;
};

}  // namespace retort::roles
