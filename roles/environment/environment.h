// Whatever answers a model's turns: a program, a service, a role in another process.
#pragma once

#include "base/future.h"
#include "roles/environment/methods.h"

namespace retort::roles {

// Use, for each episode: open, step again and again, close; one call of an episode at a time, many
// episodes at once, but that close() may come while a step is not answered, which then fails with
// kCancelled. After an error of open or step the episode is over, on both sides: nobody closes it.
//
// Errors of a future: kTimeout after the environment's own timeout; kPeerLost when it is gone;
//   kRemote when it is there, and failed with this call; kCorrupt for an answer that cannot be one;
//   kInvalidArgument for a call that it refuses, with its words; kResourceExhausted for an open
//   beyond its episodes, and for nothing else.
// Threads: any; futures complete on a thread of the environment's, where nothing may block.
class Environment {
 public:
  Environment() = default;
  virtual ~Environment() = default;
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  // Waits until the environment is ready, by its own deadline; before the first episode.
  virtual EnvironmentInfo info() = 0;
  virtual Future<OpenedEpisode> open(OpenEpisode request) = 0;
  virtual Future<EpisodeAnswer> step(EpisodeTurn turn) = 0;
  virtual Future<ClosedEpisode> close(CloseEpisode request) = 0;
  // Ends what waits, with kCancelled, and all that is asked later.
  virtual void stop() = 0;
};

}  // namespace retort::roles
