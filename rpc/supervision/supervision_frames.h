// What a launcher and its processes say to each other over a supervision connection, as values and
// as bytes. The connection has been proved both ways before the first frame, and carries them as
// that of the run's store does (rpc/launcher_port/frame_connection.h): length, then one frame
// (rpc/archive.h). supervision.h has their order.
//
// Errors: bytes that are no frame, or a field that does not belong to the frame's kind or is beyond
//   its bound, are kCorrupt.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/options.h"
#include "rpc/archive.h"
#include "rpc/launcher_port/frame_connection.h"
#include "rpc/supervision/supervision.h"

namespace retort::rpc::supervision {

// A report and its head fit into a frame, all pending reports into what may be unsent.
inline constexpr launcher_port::FrameLimits kFrameLimits{.max_frame_bytes = kMaxReportBytes + 64,
                                                         .max_unsent_bytes = 1 << 20};
// No request to stop gives more time.
inline constexpr std::chrono::hours kLongestStop{24 * 365};

enum class FromProcess : uint8_t {
  kHello,     // restart; the first frame
  kReport,    // sequence, report
  kStopping,  // the answer to kStop
  kBeat,
};

struct ProcessFrame {
  FromProcess kind = FromProcess::kBeat;
  int64_t restart = 0;    // how often the process was started again
  uint64_t sequence = 0;  // of a report; they count from 1
  std::string report;
  template <class A>
  void serialize(A& archive) {
    archive(kind, restart, sequence, report);
  }
};

enum class FromLauncher : uint8_t {
  kWelcome,   // sequence: the last report that was taken of this process, 0 for none
  kTaken,     // sequence: all reports up to this one are taken
  kStop,      // within_ms
  kReplaced,  // the process was started again: this one is not wanted any more
  kBeat,
};

struct LauncherFrame {
  FromLauncher kind = FromLauncher::kBeat;
  uint64_t sequence = 0;
  int64_t within_ms = 0;  // for the process to end
  template <class A>
  void serialize(A& archive) {
    archive(kind, sequence, within_ms);
  }
};

ProcessFrame read_process_frame(std::string_view content);
LauncherFrame read_launcher_frame(std::string_view content);

}  // namespace retort::rpc::supervision

template <>
struct retort::EnumNames<retort::rpc::supervision::FromProcess> {
  using E = retort::rpc::supervision::FromProcess;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{{{"hello", E::kHello},
                                                                         {"report", E::kReport},
                                                                         {"stopping", E::kStopping},
                                                                         {"beat", E::kBeat}}};
};

template <>
struct retort::EnumNames<retort::rpc::supervision::FromLauncher> {
  using E = retort::rpc::supervision::FromLauncher;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{{{"welcome", E::kWelcome},
                                                                         {"taken", E::kTaken},
                                                                         {"stop", E::kStop},
                                                                         {"replaced", E::kReplaced},
                                                                         {"beat", E::kBeat}}};
};
