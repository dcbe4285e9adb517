// Scores for generated completions: rules on the text, or a program or service of the user's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/text/text_template.h"
#include "recipes/rewards/options.h"

namespace retort::rewards {

// What an episode with an environment came to.
struct Episode {
  std::optional<double> reward;  // that the environment gave it
  std::string messages;          // JSON array: the whole conversation
  // Why it cannot be scored, where its environment failed; else empty.
  std::string unscorable;

  // Given up: there is no telling what it would have come to.
  bool is_lost() const { return !unscorable.empty(); }
};

// One completion to be scored.
struct RewardInput {
  std::string prompt, completion;
  std::string question;    // what the user said last in a conversation, else the prompt
  std::string reference;   // "" if the row has none
  int64_t num_tokens = 0;  // of the completion
  // whether it ended at max_new_tokens, not at EOS
  bool truncated = false;
  std::vector<std::pair<std::string, std::string>> fields;  // other columns of the row
  std::string origin;                                       // "train.jsonl:17", for errors
  std::vector<int32_t> prompt_ids, completion_ids;          // for roles
  bool is_chat = false;  // whether the chat template rendered the prompt
  // Of an episode, whose `completion` is what the model said last.
  std::optional<Episode> episode = std::nullopt;
};

struct Scored {
  // weighted sum of the components that there are; nullopt if there is none with a weight
  std::optional<double> total;
  // before weights, in the order of the options; nullopt: not scorable
  std::vector<std::optional<double>> components;
};

// A role of the run that scores.
struct AskRole {
  // A score for each input.
  std::function<std::vector<double>(const std::vector<RewardInput>&)> score;
  // Ends a score that waits, and all later ones, with kCancelled. Any thread.
  std::function<void()> stop;
};

// The answer of a judge to one text.
struct Said {
  std::string text;
  bool cut = false;  // it did not end by itself
};
// A role of the run that is asked in words.
struct AskJudge {
  // An answer to each question, of so many tokens at the most.
  std::function<std::vector<Said>(std::vector<std::string> questions, int64_t max_new_tokens)>
      answers;
  // Ends the question that waits, as AskRole's does.
  std::function<void()> stop;
};

// Connect to the role of an entry.
struct ConnectRoles {
  std::function<AskRole(const RewardOptions&)> model;   // of type: model
  std::function<AskJudge(const RewardOptions&)> judge;  // of type: judge
};

// The template of the questions to a judge, read from `file`. kInvalidArgument naming the file, and
// for bad Jinja its line.
models::TextTemplate judge_template(const std::string& file);

// The rewards of a recipe. Commands are started by the constructor and ended by the destructor (end
// of file on stdin, two seconds later SIGKILL to the process group). One thread.
class RewardSet {
 public:
  // `scores` is false on a rank that only needs the names and gets the scores of another: such a
  // set starts nothing and may not call score. `connect` is called for entries with a role, here;
  // what it returns by score().
  //
  // Errors: kInvalidArgument for an empty list, options that validate() refuses, two equal names, a
  //   program that cannot be started, a role without `connect`; `connect`'s.
  explicit RewardSet(std::vector<RewardOptions> options, bool scores = true,
                     const ConnectRoles& connect = {});
  ~RewardSet();
  RewardSet(RewardSet&&) noexcept;
  RewardSet& operator=(RewardSet&&) noexcept;

  const std::vector<std::string>& names() const;
  // One result for each input. Only a component that is null (a command or a service answered null)
  // is left out; whatever fails is an error, never a zero. No reward is asked about an episode that
  // cannot be scored: it has no component, and no total.
  //
  // Errors, each naming the reward: kInvalidArgument for a sample without the reference that the
  //   reward needs; kTimeout; kPeerLost if the command died; kCorrupt for an answer that cannot be
  //   one; kUnavailable without a service, or for a status other than 200; kResourceExhausted for a
  //   pattern beyond its match limit; kClosed if the command failed before; a role's own. Of all of
  //   them kInvalidArgument for a total that is not finite.
  std::vector<Scored> score(const std::vector<RewardInput>& inputs);
  // Ends a score() that waits for a role, which may take as long as its engine: kCancelled. Any
  // thread.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::rewards
