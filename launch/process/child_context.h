// What a role process is told besides its command line: one line on its stdin, so that the run's
// secret is neither in an argument, in the environment nor in a file. A launcher writes it, and so
// does `retort join` before it becomes the role process (launch/join).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/process/owned_fd.h"
#include "base/units.h"
#include "rpc/options.h"

namespace retort::launch {

struct ChildContext {
  std::string run;  // the id of this start of the run
  std::string role;
  int64_t rank = 0;
  int64_t incarnation = 0;
  int64_t restart = 0;  // of the process within this start of the run
  // What tells it from the processes of its name that this start had before: each has a larger one.
  int64_t life = 0;
  // The launcher's port: the run's store, and the process's supervision connection.
  std::string store_host;
  uint16_t store_port = 0;
  std::string secret;
  rpc::Encryption encryption = rpc::Encryption::kAuto;
  // Where it listens on its host, in the words of rpc.bind, and what it tells others instead of
  // that; empty: rpc.advertise.
  std::string bind = "auto", advertise;
  bool cuda = false;  // it computes on a device, so that NCCL needs the interface
  // role -> how many of its ranks are on the same host, which shares out its devices; empty: not
  // known
  std::map<std::string, int64_t> ranks_on_host;
  // Of the supervision connection; the recipe's, which the process has not read yet.
  Duration heartbeat_interval{1'000};
  Duration peer_timeout{15'000};
  bool resume = false;
  bool writes_cache = false;  // the run is that of `retort cache`
  int64_t threads = 1;
  // The resolved recipe itself, for a process that may not see the run folder; empty: from there.
  std::string recipe;
  // Whoever started it is no launcher that watches it as its child: it says itself how it ends, and
  // a signal to it is one to the run.
  bool joined = false;
  // It goes on when its launcher is lost, and looks for the next one (launch.launcher_lost).
  bool outlives_launcher = false;
  // for driving processes to save when the run is stopped; the supervisor's own setting
  Duration stop_timeout{120'000};

  bool operator==(const ChildContext&) const = default;
};

// One line, without its end.
std::string encode_context(const ChildContext& context);
// kCorrupt if the text is not a context.
ChildContext decode_context(std::string_view text);

// What a process with this context gets as its stdin. kResourceExhausted when the system has no
// descriptor or memory left.
OwnedFd context_input(const ChildContext& context);
// Reads what the supervisor passed to this process, once, at its start; stdin is empty afterwards.
// kInvalidArgument when it was not started by a supervisor.
ChildContext read_child_context();

// The descriptor in the child that SpawnOptions::hold_fd becomes, and the environment variable that
// announces a context.
inline constexpr int kHoldFd = 3;
inline constexpr const char* kContextVariable = "RETORT_CONTEXT";

}  // namespace retort::launch
