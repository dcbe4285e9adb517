// One measurement between two of the processes that measure links, and what it gave. Both travel
// through the store of these processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace retort::launch::links {

// Where, and in what words, the processes and whoever started them speak in the store:
//   job/N      the Nth job, for all of them; the last has no ends
//   address/N  of the server in it
//   result/N   of the asker in it
//   closed/N   the server has closed its agent: its port is free for the next
inline constexpr const char* kLinkRole = "link";

// Bounds a hang alone: seven messages of 64 MiB at 10 Mbit/s take six minutes.
inline constexpr std::chrono::milliseconds kJobLimit{600'000};
// How long a connection to the store, or to the other end, may take: on a slow disk the other
// process starts meanwhile.
inline constexpr std::chrono::milliseconds kLinkConnection{120'000};

struct LinkJob {
  int64_t asker = -1, server = -1;  // ranks of processes
  bool encrypted = false;
  bool to_asker = true;  // the messages are answers; else requests
  int64_t message_bytes = 0;

  bool is_last() const { return asker < 0; }
  template <class A>
  void serialize(A& archive) {
    archive(asker, server, encrypted, to_asker, message_bytes);
  }
};

struct LinkResult {
  double p50_ms = 0, p99_ms = 0;  // of round trips of 64 bytes
  double bytes_per_second = 0;    // of messages
  std::string error;              // what failed; the rest is nothing then

  template <class A>
  void serialize(A& archive) {
    archive(p50_ms, p99_ms, bytes_per_second, error);
  }
};

}  // namespace retort::launch::links
