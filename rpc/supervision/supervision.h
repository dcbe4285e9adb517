// The connection between a launcher and each process that it started: what a process reports, the
// request to stop, and on both sides the knowledge that the other one lives. It does not matter who
// started the process or on which host it runs: the process dials the launcher's one port, and both
// ends prove the run's secret, as at every connection of a run.
//
//   process                                        launcher
//   SupervisionClient  -- hello (restart)    -->   SupervisionPort
//                      <-- welcome           --
//                      -- report 1           -->   take(): kReport
//                      <-- report 1 is taken --
//                      <-- stop within 2m    --    stop()
//                      -- stopping           -->   take(): kStopping
//                      <-- heartbeats        -->
//
// Reports: each is kept by the client until the launcher has taken it, and sent again over the next
//   connection; the launcher takes none twice. Of more than kMaxPendingReports the oldest that was
//   not sent gives way: the last one is never lost while the launcher lives.
// Silence: an end from which nothing came for SupervisionTimes::limit is silent. A connection that
//   breaks, or is silent for half of that, is dialed again until then. Time in which an end stood
//   still itself (a stop signal, a debugger) is not counted as the other's silence.
// Threads: each end has, or shares, a loop thread that does all of this, so that neither the work
//   of a process nor that of a launcher delays a heartbeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/units.h"
#include "rpc/launcher_port/rendezvous_access.h"

namespace retort::rpc {

struct SupervisionTimes {
  // Between two heartbeats of an end; at most a quarter of `limit` is used.
  Duration interval{1'000};
  // An end that is silent for longer is taken for lost.
  Duration limit{15'000};
};

inline constexpr size_t kMaxReportBytes = 8 << 10;
inline constexpr size_t kMaxPendingReports = 64;
// Why a process whose successor runs already takes the launcher for lost.
inline constexpr const char* kReplaced = "it has started this process again";

struct SupervisionEvent {
  enum class Kind {
    kConnected,     // it has dialed; once for each connection
    kReport,        // `report` is what it said
    kStopping,      // it was told to stop and says that it knows
    kDisconnected,  // the connection ended; everything that came over it stands before this
    kSilent,        // nothing came for SupervisionTimes::limit, since it had connected once
    kHeard,         // something came after kSilent
  };
  Kind kind = Kind::kReport;
  std::string process;  // "teacher/0"
  int64_t restart = 0;  // as expect() said
  std::string report;
};

// The launcher's end, at the port of its RendezvousServer.
//
// Threads: any, one at a time. Nothing here waits.
class SupervisionPort {
 public:
  virtual ~SupervisionPort() = default;

  // From now on `process` is the one that was started again `restart` times; one with a lower
  // number is told that it was replaced. A process that was never expected is turned away. Call it
  // before the process is started.
  virtual void expect(const std::string& process, int64_t restart) = 0;
  // Asks the process to end within this time: now, or as soon as it connects.
  virtual void stop(const std::string& process, Duration within) = 0;
  // Readable while an event waits.
  virtual int fd() const = 0;
  // What happened since the last call, in its order.
  virtual std::vector<SupervisionEvent> take() = 0;
};

// A process's end. It dials until it is destroyed.
class SupervisionClient {
 public:
  struct Options {
    RendezvousAccess access;
    std::string host;  // of the launcher's RendezvousServer
    uint16_t port = 0;
    int64_t restart = 0;  // how often the launcher started this process again
    SupervisionTimes times;

    // Both run on the client's thread and must not block.
    // Once: the launcher is silent, has ended (on the host of this process that shows at once), or
    // has replaced this process (kReplaced).
    std::function<void(const std::string& why)> on_lost;
    // The launcher asks this process to end within this time, perhaps again with another time.
    // Null: its request is not answered.
    std::function<void(Duration within)> on_stop;
  };

  // kInvalidArgument for a name, run or secret that cannot be.
  explicit SupervisionClient(Options options);
  ~SupervisionClient();  // what was not flushed is lost
  SupervisionClient(const SupervisionClient&) = delete;
  SupervisionClient& operator=(const SupervisionClient&) = delete;

  // Never waits. Any thread. kInvalidArgument beyond kMaxReportBytes.
  void report(std::string text);
  // Waits until the launcher has taken all reports; false at the deadline, and as soon as the
  // launcher is lost and not connected. Any thread but loop threads.
  bool flush(Deadline deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::rpc
