// The launcher's end of all supervision connections (supervision.h). The store's server, whose port
// they come to, hands them over once they are proved.
//
//   acceptor -> welcome() -> FrameConnection -> Member -> events -> take()
//
// Use: attach() before the loop runs, close() when it is about to end. One for each port.
// Errors: what cannot be costs its connection, with a line in the log.
// Threads: attach() before the loop runs; welcome() and close() on the loop thread; the rest as
//   SupervisionPort says.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/launcher_port/frame_connection.h"
#include "rpc/loop/loop.h"
#include "rpc/supervision/supervision.h"
#include "rpc/supervision/supervision_frames.h"
#include "rpc/transport/proof.h"

namespace retort::rpc::supervision {

class SupervisionServer final : public SupervisionPort,
                                public std::enable_shared_from_this<SupervisionServer> {
 public:
  // kResourceExhausted when the system has no descriptor left.
  explicit SupervisionServer(SupervisionTimes times);
  ~SupervisionServer() override;
  SupervisionServer(const SupervisionServer&) = delete;
  SupervisionServer& operator=(const SupervisionServer&) = delete;

  void attach(std::shared_ptr<rpc::detail::Loop> loop);
  void welcome(std::shared_ptr<transport::Stream> stream, const transport::Proven& who);
  void close();

  void expect(const std::string& process, int64_t restart) override;
  void stop(const std::string& process, Duration within) override;
  int fd() const override { return event_fd_; }
  std::vector<SupervisionEvent> take() override;

 private:
  using TimePoint = Deadline::Clock::time_point;
  using Kind = SupervisionEvent::Kind;

  struct Connection {
    std::shared_ptr<launcher_port::FrameConnection> frames;
    std::string peer;
    TimePoint since;
    bool greeted = false;  // it said a hello that was taken
  };
  // What is known of an expected process.
  struct Member {
    int64_t restart = 0;
    uint64_t connection = 0;         // 0: none
    uint64_t sequence = 0;           // of the last report that was taken
    std::optional<TimePoint> heard;  // none before its first hello
    bool silent = false;
    std::optional<int64_t> stop_within_ms;
  };

  void on_frame(uint64_t id, std::string_view content);
  void on_hello(uint64_t id, Connection& connection, const ProcessFrame& frame);
  void on_report(Connection& connection, Member& member, ProcessFrame frame);
  void on_end(uint64_t id, const Error& error);
  void note_heard(const std::string& process, Member& member);
  static void send(Connection& connection, const LauncherFrame& frame);
  void emit(Kind kind, const std::string& process, int64_t restart, std::string report = {});
  void arm();
  void tick();

  const SupervisionTimes times_;
  const Duration period_;
  const int event_fd_;

  // Used on the loop thread.
  std::shared_ptr<rpc::detail::Loop> loop_;
  std::optional<boost::asio::steady_timer> timer_;
  TimePoint due_;
  std::map<std::string, Member> members_;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_connection_ = 1;
  bool closed_ = false;

  std::mutex mutex_;
  std::deque<SupervisionEvent> events_;
};

// How often an end sends a heartbeat and looks for the other's.
Duration heartbeat_period(const SupervisionTimes& times);

}  // namespace retort::rpc::supervision
