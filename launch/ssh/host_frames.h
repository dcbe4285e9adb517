// What a launcher and `retort host`, which it runs on another host, say to each other over the
// standard input and output of the latter.
//
//   launcher                                    host
//                              <-- line      --  version_line(): compared before anything else
//   place: folders, times      -->
//                              <-- here      --  addresses, cores, what the run's mark says
//   start id: context, ...     -->
//                              <-- started   --  or refused, with a message
//                              <-- output    --  of a process; before its end
//   examine: what of           -->
//                              <-- examined  --  what was found (launch/doctor)
//   signal id                  -->
//                              <-- held      --  a stop signal holds it, or no more
//                              <-- ended     --  with its status
//   end                        -->               whatever is left is killed; the host ends
//   beat                       <->           beat
//
// Secrets are part of a context and so travel inside the connection alone.
// Errors: bytes that are no frame are kCorrupt.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"
#include "rpc/archive.h"

namespace retort::launch {

enum class ToHostKind : uint8_t { kPlace, kStart, kSignal, kEnd, kBeat, kExamine };
enum class FromHostKind : uint8_t {
  kHere,
  kStarted,
  kRefused,
  kOutput,
  kHeld,
  kEnded,
  kBeat,
  kExamined
};

struct ToHost {
  ToHostKind kind = ToHostKind::kBeat;
  uint64_t id = 0;                        // of a process
  std::string folder;                     // place: what relative paths begin from
  std::string run_folder;                 // place
  int64_t interval_ms = 0, limit_ms = 0;  // place: of life signs
  std::string context;                    // start: as child_context.h encodes it
  std::vector<std::string> arguments;     // start
  std::map<std::string, std::string> env;
  std::string log;       // start: where output goes that cannot be sent any more
  bool driving = false;  // start
  int64_t number = 0;    // signal
  bool group = false;    // signal
  std::string question;  // examine
  template <class A>
  void serialize(A& archive) {
    archive(kind, id, folder, run_folder, interval_ms, limit_ms, context, arguments, env, log,
            driving, number, group, question);
  }
};

struct FromHost {
  FromHostKind kind = FromHostKind::kBeat;
  uint64_t id = 0;
  std::string text;        // here: the run's mark; refused: why; output; examined
  std::string connection;  // here: SSH_CONNECTION
  int64_t number = 0;      // here: cores; started: pid; held: 1 or 0; ended: status
  template <class A>
  void serialize(A& archive) {
    archive(kind, id, text, connection, number);
  }
};

ToHost read_to_host(std::string_view content);
FromHost read_from_host(std::string_view content);

}  // namespace retort::launch

template <>
struct retort::EnumNames<retort::launch::ToHostKind> {
  using E = retort::launch::ToHostKind;
  static constexpr std::array<std::pair<std::string_view, E>, 6> values{{{"place", E::kPlace},
                                                                         {"start", E::kStart},
                                                                         {"signal", E::kSignal},
                                                                         {"end", E::kEnd},
                                                                         {"beat", E::kBeat},
                                                                         {"examine", E::kExamine}}};
};

template <>
struct retort::EnumNames<retort::launch::FromHostKind> {
  using E = retort::launch::FromHostKind;
  static constexpr std::array<std::pair<std::string_view, E>, 8> values{
      {{"here", E::kHere},
       {"started", E::kStarted},
       {"refused", E::kRefused},
       {"output", E::kOutput},
       {"held", E::kHeld},
       {"ended", E::kEnded},
       {"beat", E::kBeat},
       {"examined", E::kExamined}}};
};
