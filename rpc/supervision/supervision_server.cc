#include "rpc/supervision/supervision_server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace retort::rpc::supervision {
namespace {

using Clock = Deadline::Clock;

// Reports of one process that nobody has taken; beyond it the oldest gives way.
constexpr std::ptrdiff_t kMaxWaitingReports = 256;

int make_event_fd() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot make an event descriptor: ") + std::strerror(errno));
  return fd;
}

}  // namespace

Duration heartbeat_period(const SupervisionTimes& times) {
  return std::max(Duration(1), std::min(times.interval, times.limit / 4));
}

SupervisionServer::SupervisionServer(SupervisionTimes times)
    : times_(times), period_(heartbeat_period(times)), event_fd_(make_event_fd()) {}

SupervisionServer::~SupervisionServer() { ::close(event_fd_); }

void SupervisionServer::attach(std::shared_ptr<rpc::detail::Loop> loop) {
  loop_ = std::move(loop);
  timer_.emplace(loop_->io());
  arm();
}

void SupervisionServer::close() {
  closed_ = true;
  timer_->cancel();
  for (auto& [id, connection] : connections_)
    connection.frames->close();
}

void SupervisionServer::expect(const std::string& process, int64_t restart) {
  loop_->post([self = shared_from_this(), process, restart] {
    Member& member = self->members_[process];
    const uint64_t before = member.connection;
    member = {.restart = restart};

    // A connection that still speaks for the process before is told so, and has nothing more to say
    // here.
    const auto found = self->connections_.find(before);
    if (found == self->connections_.end()) return;
    found->second.greeted = false;
    found->second.since = Clock::now();
    send(found->second, {.kind = FromLauncher::kReplaced});
  });
}

void SupervisionServer::stop(const std::string& process, Duration within) {
  const Duration bounded = std::clamp<Duration>(within, Duration(0), kLongestStop);
  loop_->post([self = shared_from_this(), process, within_ms = bounded.count()] {
    const auto member = self->members_.find(process);
    if (member == self->members_.end()) return;
    member->second.stop_within_ms = within_ms;

    const auto found = self->connections_.find(member->second.connection);
    if (found != self->connections_.end())
      send(found->second, {.kind = FromLauncher::kStop, .within_ms = within_ms});
  });
}

std::vector<SupervisionEvent> SupervisionServer::take() {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(event_fd_, &count, sizeof count);
  std::lock_guard lock(mutex_);
  std::vector<SupervisionEvent> events(std::make_move_iterator(events_.begin()),
                                       std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

void SupervisionServer::emit(Kind kind, const std::string& process, int64_t restart,
                             std::string report) {
  {
    std::lock_guard lock(mutex_);
    const auto is_report = [&](const SupervisionEvent& event) {
      return event.kind == Kind::kReport && event.process == process;
    };
    const bool is_full =
        kind == Kind::kReport && std::ranges::count_if(events_, is_report) >= kMaxWaitingReports;
    if (is_full) events_.erase(std::ranges::find_if(events_, is_report));
    events_.push_back({kind, process, restart, std::move(report)});
  }
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_fd_, &one, sizeof one);
}

void SupervisionServer::welcome(std::shared_ptr<transport::Stream> stream,
                                const transport::Proven& who) {
  if (closed_) return stream->close();
  const uint64_t id = next_connection_++;
  const auto frames = std::make_shared<launcher_port::FrameConnection>(
      loop_->io(), std::move(stream), kFrameLimits);
  connections_.emplace(id, Connection{frames, who.peer, Clock::now()});
  frames->start([this, id](std::string_view content) { on_frame(id, content); },
                [this, id](const Error& error) { on_end(id, error); });
}

void SupervisionServer::on_frame(uint64_t id, std::string_view content) {
  ProcessFrame frame = read_process_frame(content);
  Connection& connection = connections_.at(id);
  if (!connection.greeted) return on_hello(id, connection, frame);

  Member& member = members_.at(connection.peer);
  // Every frame is a sign of life, whatever it says.
  note_heard(connection.peer, member);
  switch (frame.kind) {
    case FromProcess::kHello:
      throw Error(ErrorCode::kCorrupt, "a process said hello twice over one connection");
    case FromProcess::kReport: return on_report(connection, member, std::move(frame));
    case FromProcess::kStopping: return emit(Kind::kStopping, connection.peer, member.restart);
    case FromProcess::kBeat: return;
  }
}

void SupervisionServer::on_hello(uint64_t id, Connection& connection, const ProcessFrame& frame) {
  if (frame.kind != FromProcess::kHello)
    throw Error(ErrorCode::kCorrupt, "a process did not say hello first");
  const auto found = members_.find(connection.peer);
  if (found == members_.end())
    throw Error(ErrorCode::kUnauthenticated, "nobody of this name was started");

  Member& member = found->second;
  // A process that was replaced is told so; one that the launcher has not started yet cannot be.
  if (frame.restart < member.restart) return send(connection, {.kind = FromLauncher::kReplaced});
  if (frame.restart > member.restart)
    throw Error(ErrorCode::kMismatch, "it says that it was started again more often than it was")
        .with("restart", frame.restart)
        .with("expected", member.restart);

  // One that dials again means that the connection before is over, whatever this end saw of it.
  if (const auto before = connections_.find(member.connection); before != connections_.end()) {
    before->second.frames->close();
    connections_.erase(before);
    emit(Kind::kDisconnected, connection.peer, member.restart);
  }
  member.connection = id;
  connection.greeted = true;
  emit(Kind::kConnected, connection.peer, member.restart);
  note_heard(connection.peer, member);

  // The welcome says which report was taken last, so that none is taken twice. A request to stop
  // that came while the process was away is made again.
  send(connection, {.kind = FromLauncher::kWelcome, .sequence = member.sequence});
  if (member.stop_within_ms)
    send(connection, {.kind = FromLauncher::kStop, .within_ms = *member.stop_within_ms});
}

// The event is made before the answer is sent: a report that its process knows to be taken can be
// read here.
void SupervisionServer::on_report(Connection& connection, Member& member, ProcessFrame frame) {
  if (frame.sequence > member.sequence) {
    member.sequence = frame.sequence;
    emit(Kind::kReport, connection.peer, member.restart, std::move(frame.report));
  }
  send(connection, {.kind = FromLauncher::kTaken, .sequence = member.sequence});
}

void SupervisionServer::on_end(uint64_t id, const Error& error) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const std::string peer = found->second.peer;
  connections_.erase(found);

  // A process that ends closes its connection: that is no news.
  if (error.code() != ErrorCode::kPeerLost) {
    RETORT_LOG(kWarning) << "a supervision connection of " << peer
                         << " was dropped: " << error.what();
  }
  const auto member = members_.find(peer);
  if (member == members_.end() || member->second.connection != id) return;
  member->second.connection = 0;
  emit(Kind::kDisconnected, peer, member->second.restart);
}

void SupervisionServer::note_heard(const std::string& process, Member& member) {
  member.heard = Clock::now();
  if (std::exchange(member.silent, false)) emit(Kind::kHeard, process, member.restart);
}

void SupervisionServer::send(Connection& connection, const LauncherFrame& frame) {
  connection.frames->send(launcher_port::with_length(to_bytes(frame)));
}

void SupervisionServer::arm() {
  due_ = Clock::now() + period_;
  timer_->expires_at(due_);
  timer_->async_wait([this](const boost::system::error_code& code) {
    if (code || closed_) return;
    tick();
    arm();
  });
}

void SupervisionServer::tick() {
  // A late tick means that this process stood still, so that time does not count as anybody's
  // silence.
  const TimePoint now = Clock::now();
  const auto late = now - due_;
  const auto still = late > period_ ? late : Clock::duration(0);

  // A connection that says no hello is closed after the limit; the others get a heartbeat.
  for (auto at = connections_.begin(); at != connections_.end();) {
    Connection& connection = at->second;
    connection.since += still;
    if (connection.greeted) send(connection, {.kind = FromLauncher::kBeat});
    const bool is_mute = !connection.greeted && now - connection.since > times_.limit;
    if (is_mute) connection.frames->close();
    at = is_mute ? connections_.erase(at) : std::next(at);
  }

  // Silence is told once, and only of a process that has been heard before.
  for (auto& [process, member] : members_) {
    if (!member.heard) continue;
    *member.heard = std::min(*member.heard + still, now);
    if (member.silent || now - *member.heard <= times_.limit) continue;
    member.silent = true;
    emit(Kind::kSilent, process, member.restart);
  }
}

}  // namespace retort::rpc::supervision
