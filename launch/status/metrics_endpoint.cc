#include "launch/status/metrics_endpoint.h"

#include <chrono>
#include <utility>

#include "launch/status/metrics_page.h"

namespace retort::launch {
namespace {

constexpr std::chrono::seconds kEvery{1};

}  // namespace

MetricsEndpoint::MetricsEndpoint(const std::string& address, uint16_t port,
                                 const Progress& progress, const StatusFile& status)
    : progress_(progress),
      status_(status),
      page_(page()),
      server_({.address = address, .port = port, .page = [this] {
                 const std::lock_guard lock(mutex_);
                 return page_;
               }}) {}

void MetricsEndpoint::on_tick() {
  const auto now = std::chrono::steady_clock::now();
  if (now < due_) return;
  due_ = now + kEvery;
  // The page is made on this thread, to which the progress and the status belong. It is made
  // without the lock, so that the server does not wait for it.
  std::string fresh = page();
  const std::lock_guard lock(mutex_);
  page_ = std::move(fresh);
}

std::string MetricsEndpoint::page() const {
  const ProgressState& progress = progress_.state();
  return metrics_page(status_.status(), StatusFile::Clock::now(), progress.last,
                      progress.last_eval);
}

}  // namespace retort::launch
