// One run: a few clients and servers, calls of all kinds between them, faults, and what must be
// true whatever happens. Everything in it follows from the seed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/rpc/simulation/process.h"

namespace retort::rpc::simulation {

// True in every run:
// - each call ends, with a value or an error that its fate explains;
// - its handler runs at most once;
// - memory of requests in flight to one peer stays within rpc.max_inflight_bytes, or is one call's;
// - a connection whose other end is silent ends within two rpc.peer_timeout;
// - when the faults are over every client reaches every server again, with as many calls and as
//   large ones as at the beginning, and what was in flight is zero afterwards;
// - agents end in time, and no session is left.
// In a run without faults, besides: every call that nobody cancels gets its value, and large calls
// begin in the order in which they were made.
class AgentSimulation {
 public:
  explicit AgentSimulation(uint64_t seed);

  // Empty, or what went wrong.
  std::string run();
  uint64_t fingerprint() const { return world_.scheduler.fingerprint(); }
  milliseconds elapsed() const { return world_.scheduler.elapsed(); }

 private:
  enum class Fault {
    kResetControl,
    kMuteControl,
    kMuteControlOneWay,
    kResetData,
    kMuteData,
    kMuteDataOneWay,
    kFreeze,
    kReplaceFrozen,
    kKill,
    kKillSilently,
    kPartition,
    kLast = kPartition
  };

  struct Call;

  // agent_simulation.cc
  void conduct();
  RpcOptions options();
  std::shared_ptr<Process> start(const std::string& name, uint64_t restart);
  void begin_callers();
  void watch();
  void check_reached(Process& client, const std::string& server);
  void end();
  std::shared_ptr<Process> any();
  std::shared_ptr<Process>& named(const std::string& name);

  // agent_simulation_faults.cc
  void injure();
  void freeze(const std::shared_ptr<Process>& process, milliseconds time);
  void replace(const std::string& name, milliseconds pause);
  void connect(Process& client);
  void partition();

  // agent_simulation_calls.cc
  void call_again_and_again(const std::shared_ptr<Process>& caller, int64_t num_calls);
  Call new_call(const Process& caller);
  void call_once(Process& caller, Call call);
  void call_in_a_chain(Process& caller, Call first);
  void hold_one(const std::shared_ptr<Process>& caller, const std::string& peer);
  Future<WorkReply> send(Process& caller, const Call& call);
  void check(const Call& call, Future<WorkReply> future);
  void check_error(const Call& call, const Error& error);

  World world_;
  const bool calm_;
  const milliseconds heartbeat_, peer_timeout_;
  // In an ordered run queues of handlers are as short as the callers' credit allows.
  std::optional<int64_t> max_calls_;
  uint64_t next_call_ = 1;
  int num_callers_ = 0;  // at work
  bool faults_over_ = false, callers_done_ = false, ended_ = false;
  std::vector<std::string> clients_, servers_;
  std::vector<std::shared_ptr<Process>> processes_;  // of today, by name in clients_ and servers_
  std::vector<std::shared_ptr<Process>> former_;
};

}  // namespace retort::rpc::simulation
