// A role that is an environment: it answers the turns of other processes' episodes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/future.h"
#include "roles/environment/environment.h"
#include "roles/environment/methods.h"
#include "roles/served_role.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers environment.info, .open, .step and .close with one Environment. Callers number their
// episodes as they like; the environment sees numbers of this role's, so that no two callers meet.
//
//   remote calls                                      the environment, on threads of its own
//     open    a number of ours, and room, is taken -->  answers the caller
//     step    one at a time                        -->  answers the caller
//     close   at once; behind an open in work      -->  answers the caller, and the room is free
//   work      closes episodes whose callers are gone
//
// Use: as every ServedRole.
// Callers: gone is who is no longer connected, or opens an episode as another process of the same
//   name. A call that its caller has given up closes its episode when it is answered.
// Errors: those of the environment, whatever it was asked, close the episode and go to its caller;
//   kPeerLost, which says that the environment has lost the episode, as kUnavailable: this process
//   is there. kUnavailable also for an episode that is not open here, because its process or its
//   caller's connection has ended since; kResourceExhausted beyond EnvironmentInfo::episodes.
//   An environment is lost for good when kMaxLosses times in a row it lost an episode that it was
//   to open, each asked for after the one before was lost. Then every call fails with kPeerLost,
//   and work() throws: the process ends, and may begin anew.
// Threads: compute.
class EnvironmentServer final : public ServedRole {
 public:
  static constexpr int kMaxLosses = 3;
  // Between two looks at who is still connected.
  static constexpr std::chrono::milliseconds kLookEvery{100};

  // Waits until the environment is ready, by its own deadline; it is this role's alone. `name` is
  // that of the process, "tools/0".
  EnvironmentServer(std::string name, std::shared_ptr<Environment> environment);
  ~EnvironmentServer() override;

  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  // Never has anything left to do.
  bool work() override;
  void stop() override;

  const EnvironmentInfo& info() const { return info_; }
  Future<OpenedEpisode> open(OpenEpisode request, const rpc::CallContext& caller);
  Future<EpisodeAnswer> step(EpisodeTurn turn, const rpc::CallContext& caller);
  Future<ClosedEpisode> close(const CloseEpisode& request, const rpc::CallContext& caller);

  // Counts the episodes that the environment has, those that are being closed among them.
  size_t num_open() const;
  int64_t episodes_closed() const;
  Progress progress() const override;
  std::string summary() const override;

 private:
  class Episodes;

  EnvironmentInfo info_;
  const std::shared_ptr<Episodes> episodes_;  // shared with the calls that are in work
  rpc::Agent* agent_ = nullptr;               // knows who is connected; null before serve()
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace retort::roles
