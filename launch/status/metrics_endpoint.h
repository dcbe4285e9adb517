// Shows a run's numbers to Prometheus while it goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "http/page_server.h"
#include "launch/status/progress.h"
#include "launch/status/status_file.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

// GET /metrics at `address`, as long as it lives; the page is made anew every second.
// Told of everything after `progress` and `status`, which outlive it.
// Threads: one, the supervisor's; answers have one of their own.
class MetricsEndpoint final : public SupervisorObserver {
 public:
  // kUnavailable if nobody can listen there.
  MetricsEndpoint(const std::string& address, uint16_t port, const Progress& progress,
                  const StatusFile& status);

  void on_tick() override;
  uint16_t port() const { return server_.port(); }

 private:
  std::string page() const;

  const Progress& progress_;
  const StatusFile& status_;
  std::chrono::steady_clock::time_point due_;
  mutable std::mutex mutex_;  // of page_
  std::string page_;
  http::PageServer server_;
};

}  // namespace retort::launch
