// The typed remote methods of a role that answers a model's turns: an environment with tools.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rpc/method.h"

namespace retort::roles {

// Begins an episode. Texts in JSON are passed on as they are: what they hold is between the
// environment and the chat template.
struct OpenEpisode {
  uint64_t episode = 0;  // unique among the caller's
  uint64_t seed = 0;     // equal within a group, so that a group has one task
  std::string row;       // the row of the data, a JSON object
  template <class A>
  void serialize(A& archive) {
    archive(episode, seed, row);
  }
};
struct OpenedEpisode {
  std::string tools = "[]";     // JSON array of schemas, as chat templates take them
  std::string messages = "[]";  // JSON array: what comes behind the row's own messages
  // Goes behind the text of the last message before those: TRL's reset() adds there what it says.
  std::string append;
  template <class A>
  void serialize(A& archive) {
    archive(tools, messages, append);
  }
};

// A turn of the model.
struct EpisodeTurn {
  uint64_t episode = 0;
  int64_t turn = 0;          // from 1
  std::string text;          // what the model said, without its calls
  std::string calls = "[]";  // JSON array of {"id", "name", "arguments"}, in the order as written
  template <class A>
  void serialize(A& archive) {
    archive(episode, turn, text, calls);
  }
};
struct EpisodeAnswer {
  std::string messages = "[]";  // JSON array: of the role tool, one for each call, or user
  bool done = false;            // the model says nothing more
  int64_t failed_calls = 0;     // calls whose answer is an error's text
  template <class A>
  void serialize(A& archive) {
    archive(messages, done, failed_calls);
  }
};

// Ends an episode, wherever it is.
struct CloseEpisode {
  uint64_t episode = 0;
  template <class A>
  void serialize(A& archive) {
    archive(episode);
  }
};
struct ClosedEpisode {
  std::optional<double> reward;  // finite; none: the environment gives none
  std::string metrics = "{}";    // JSON object of finite numbers
  template <class A>
  void serialize(A& archive) {
    archive(reward, metrics);
  }
};

struct EnvironmentInfo {
  std::string name;         // "tools/0"
  bool user_turns = false;  // it answers turns without calls, too
  int64_t episodes = 0;     // that it takes at once
  template <class A>
  void serialize(A& archive) {
    archive(name, user_turns, episodes);
  }
};

inline constexpr rpc::Method<Empty, EnvironmentInfo> kEnvironmentInfo{"environment.info", true};
// An episode is forgotten when it is closed, or its caller's connection ends; then the environment
// is told to close it. kResourceExhausted beyond `episodes` of all callers; kUnavailable for one
// that is lost while the role goes on.
inline constexpr rpc::Method<OpenEpisode, OpenedEpisode> kEnvironmentOpen{"environment.open"};
inline constexpr rpc::Method<EpisodeTurn, EpisodeAnswer> kEnvironmentStep{"environment.step"};
inline constexpr rpc::Method<CloseEpisode, ClosedEpisode> kEnvironmentClose{"environment.close"};

}  // namespace retort::roles
