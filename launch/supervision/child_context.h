// What a launcher hands to each role process besides its command line: through an inherited pipe,
// so that the run's secret is neither in an argument, in the environment nor in a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/units.h"

namespace retort::launch {

struct ChildContext {
  std::string run, role;
  int64_t rank = 0;
  int64_t incarnation = 0;
  int64_t restart = 0;  // of the process within this start of the run
  std::string store_host;
  uint16_t store_port = 0;
  std::string secret;
  bool resume = false;
  int64_t threads = 1;
  // for driving processes to save when the run is stopped; the supervisor's own setting
  Duration stop_timeout{120'000};

  bool operator==(const ChildContext&) const = default;
};

std::string encode_context(const ChildContext& context);
// kCorrupt if the text is not a context.
ChildContext decode_context(std::string_view text);

// The inherited file descriptors of a role process.
struct ChildChannels {
  ChildContext context;
  int life_fd = -1;    // for LifePipe
  int status_fd = -1;  // for StatusPipe
};

// Reads what the supervisor passed to this process, once, at its start. kInvalidArgument when it
// was not started by a supervisor.
ChildChannels open_child_channels();

// Numbers of the descriptors in the child and the environment variable that announces them.
inline constexpr int kLifeFd = 3, kStatusFd = 4, kContextFd = 5, kHoldFd = 6;
inline constexpr const char* kChannelsVariable = "RETORT_CHANNELS";

}  // namespace retort::launch
