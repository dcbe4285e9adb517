// A launcher's port, processes that dial it, and what the launcher heard of them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/rendezvous/rendezvous.h"
#include "rpc/supervision/supervision.h"
#include "tests/rpc/rendezvous/store_fixture.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::supervision::testing {

using namespace std::chrono_literals;
using Kind = SupervisionEvent::Kind;

inline Deadline soon() { return Deadline::after(60s); }

// Of the same run as rendezvous::testing::identity_of().
inline RendezvousAccess access(std::string name) {
  return {.name = std::move(name), .run = "run 7", .secret = "the secret of these tests"};
}

// The end of a process, and what it was told.
class Member {
 public:
  explicit Member(SupervisionClient::Options options, bool answers = true) {
    options.on_lost = [this](const std::string& why) {
      std::lock_guard lock(mutex_);
      why_ = why;
    };
    if (answers) options.on_stop = [this](Duration within) { within_ms_ = within.count(); };
    client_ = std::make_unique<SupervisionClient>(std::move(options));
  }
  ~Member() { client_.reset(); }  // before what its thread writes into

  SupervisionClient& client() { return *client_; }
  std::string why_lost() {
    std::lock_guard lock(mutex_);
    return why_;
  }
  int64_t stop_within_ms() const { return within_ms_; }

 private:
  std::mutex mutex_;
  std::string why_;
  std::atomic<int64_t> within_ms_{-1};
  std::unique_ptr<SupervisionClient> client_;
};

class Supervised : public ::testing::Test {
 protected:
  // Long enough for any machine, where the limit is not what a test is about.
  explicit Supervised(SupervisionTimes times = {.interval = 50ms, .limit = 60s}) : times_(times) {}

  SupervisionClient::Options options(const std::string& name = "student/0", int64_t restart = 0) {
    return {.access = access(name),
            .host = server_->host(),
            .port = server_->port(),
            .restart = restart,
            .times = times_,
            .on_lost = {},
            .on_stop = {}};
  }
  SupervisionPort& port() { return server_->supervision(); }

  void take() {
    for (SupervisionEvent& event : port().take())
      events_.push_back(std::move(event));
  }
  size_t count(Kind kind, const std::string& process = "student/0") {
    take();
    size_t number = 0;
    for (const SupervisionEvent& event : events_)
      number += event.kind == kind && event.process == process ? 1 : 0;
    return number;
  }
  bool wait_for(Kind kind, size_t number = 1, const std::string& process = "student/0") {
    return test::wait_until([&] { return count(kind, process) >= number; });
  }
  std::vector<std::string> reports() {
    take();
    std::vector<std::string> texts;
    for (const SupervisionEvent& event : events_)
      if (event.kind == Kind::kReport) texts.push_back(event.report);
    return texts;
  }

  const SupervisionTimes times_;
  std::unique_ptr<RendezvousServer> server_ =
      std::make_unique<RendezvousServer>(access(""), "auto", "0", times_);
  std::vector<SupervisionEvent> events_;
};

}  // namespace retort::rpc::supervision::testing
