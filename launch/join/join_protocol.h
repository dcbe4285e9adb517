// How the processes of a run that no launcher has as its children meet, over the run's store. Rank
// 0 of the student keeps the store, or a launcher that had them started (launch/slurm); whoever is
// there proves the run's secret.
//
//   the others (Guest)                          student/0, or a launcher (Host)
//   connect, until somebody listens      <--    store
//   start: digest, mode, recipe          <--    set
//   compares the recipe
//   claim: who comes second is refused   -->
//   member: host, process, cores         -->    waits for all, and names who is missing
//   context: what it is told             <--    threads by the cores of its machine
//   becomes the rank, and dials the supervision port like every rank
//
// Calling off: whoever refuses says so in its `member`, and what the host cannot begin it calls off
//   in every `context`; all then end with that error.
// Waits: all have the deadline that their caller gives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "launch/process/child_context.h"
#include "parallel/world.h"
#include "rpc/listen_address.h"

namespace retort::launch {

// What the processes of such a run prove beside its secret until they are told the id of its start,
// which every connection afterwards proves.
inline constexpr const char* kMeetingRun = "joined";

// Where and by what the processes meet.
struct MeetingAccess {
  std::string host;
  uint16_t port = 0;
  std::string secret;
  rpc::Encryption encryption = rpc::Encryption::kAuto;
  std::string own_name;  // of this process in proofs and logs
};

// What the host says first.
struct MeetingStart {
  std::string digest;  // of the resolved recipe, but for its output_dir
  std::string mode;    // fresh | resume | overwrite
  std::string recipe;  // resolved, as YAML
  Duration load_timeout{0};
  // A launcher keeps the run: student/0 joins as all others do.
  bool has_launcher = false;
};

// A process that is there.
struct Member {
  std::string name;  // "teacher/0"
  std::string host;  // for people
  int64_t pid = 0;
  std::string machine;  // the same for all processes that share cores
  std::string cpus;     // which of them it may use, a digit for each: "1101"
  std::string refusal;  // why it will not be part of the run; "": it will
};
Member own_member(const std::string& name);

// How many threads each member has: its share of the cores that it may use, at least 1. A pure
// function: a core is shared by all members of its machine that may use it.
std::map<std::string, int64_t> share_cores(const std::vector<Member>& members);

class MeetingHost {
 public:
  // kTimeout or what the store's client throws.
  MeetingHost(const MeetingAccess& access, const MeetingStart& start);

  // Waits until all of these have come. Throws kTimeout naming who is missing, kMismatch when one
  // of them refuses, kCancelled when `is_stopping`, and what `check` throws of all that have come.
  // What it throws it has called off before.
  std::vector<Member> wait_for(const std::vector<std::string>& names, Duration within,
                               const std::function<bool()>& is_stopping,
                               const std::function<void(const std::vector<Member>&)>& check = {});
  // Tells a member what it is; all but the secret.
  void tell(const ChildContext& context);

 private:
  void call_off(const std::vector<std::string>& names, const Error& why);
  parallel::StoreClient store_;
};

class MeetingGuest {
 public:
  // Waits for the host. kTimeout, kUnauthenticated, kMismatch.
  MeetingGuest(const MeetingAccess& access, Duration within);

  const MeetingStart& start() const { return start_; }
  // Takes the place of this name; kInvalidArgument naming the process that has it.
  void claim(const std::string& name);
  // Says why this process will not be part of the run, and throws it.
  [[noreturn]] void refuse(const std::string& name, const Error& why);
  // Waits to be told what it is: all but the secret. kTimeout; kPeerLost when the host is gone, and
  // with its reason when it called the meeting off.
  ChildContext wait_for_context(const std::string& name, Duration within);

 private:
  std::string keeper() const;  // who keeps the run
  parallel::StoreClient store_;
  MeetingStart start_;
};

}  // namespace retort::launch
