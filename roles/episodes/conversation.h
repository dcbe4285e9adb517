// The messages of an episode, as JSON: what its row and its environment bring, and what the model
// says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tool_calls.h"
#include "roles/environment/methods.h"

namespace retort::roles {

// Keys keep their order, since templates print schemas and arguments as they come.
class Conversation {
 public:
  // `messages`, a JSON array; empty: those of the row without a last one of the assistant, which is
  // what the row would have it say. kInvalidArgument unless the row is an object, and there are
  // some.
  explicit Conversation(std::string_view row, std::string_view messages = {});

  // What the environment adds before the first turn: its tools, its messages, and text behind the
  // row's last one. kCorrupt for what cannot be that.
  void open(const OpenedEpisode& opened);
  // A turn of the model, whose calls are readable. They are named c0, c1, ... through the whole
  // conversation, their arguments passed on as they are; a thought is its reasoning_content, as
  // Qwen's templates have it.
  void add_turn(const models::ParsedTurn& turn);
  // What answers it. kCorrupt unless these are messages of the roles tool and user.
  void add_answers(std::string_view messages_json);

  // A JSON array of all of them.
  std::string messages() const;
  const std::string& tools() const { return tools_; }
  // What the template is given besides them, a JSON object: the row's chat_template_kwargs, and the
  // tools where there are some.
  std::string variables() const;
  // The last turn: its text without the calls, and the calls as EpisodeTurn has them.
  const std::string& text() const { return text_; }
  const std::string& calls() const { return calls_; }
  int64_t num_calls() const { return num_calls_; }  // of the last turn

 private:
  std::vector<std::string> messages_;  // each an object
  std::string tools_ = "[]";
  std::string kwargs_ = "{}";
  std::string text_, calls_ = "[]";
  int64_t num_calls_ = 0;
  int64_t next_call_ = 0;
};

// False where a call's arguments are no JSON object that a parser should go through.
bool has_readable_calls(const models::ParsedTurn& turn);
// kCorrupt unless a JSON array of messages answers a turn of so many calls, so that the model can
// say something to them: first one of the role tool for each call, then others of the role user;
// one at least.
void check_answers(std::string_view messages_json, int64_t num_calls);

}  // namespace retort::roles
