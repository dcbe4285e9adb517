#include "rpc/supervision/supervision.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/network_interfaces.h"
#include "rpc/detail/bind_address.h"
#include "rpc/launcher_port/store_identity.h"
#include "rpc/loop/loop.h"
#include "rpc/supervision/supervision_frames.h"
#include "rpc/supervision/supervision_server.h"
#include "rpc/transport/dial.h"

namespace retort::rpc {
namespace {

using Clock = Deadline::Clock;
using supervision::FromLauncher;
using supervision::FromProcess;
using supervision::LauncherFrame;
using supervision::ProcessFrame;

// Reports that are on their way at a time; the others wait here, where the oldest may give way.
constexpr size_t kMaxSentReports = 16;
constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{500};
// One attempt to connect: a launcher that stands still takes connections and says nothing.
constexpr std::chrono::milliseconds kAttempt{5'000};

}  // namespace

struct SupervisionClient::Impl {
  struct Report {
    uint64_t sequence = 0;
    std::string text;
  };

  explicit Impl(Options o);
  ~Impl();

  void report(std::string text);
  bool flush(Deadline deadline);

  // All that follows runs on the loop thread.
  void attempt();
  void on_dialed(transport::HandshakeResult result);
  void dial_later();
  void on_frame(std::string_view content);
  void on_taken(uint64_t sequence);
  void on_stop(Duration within);
  void send(const ProcessFrame& frame);
  void send_reports();
  void disconnect();
  void lose(const std::string& why);
  void arm();
  void tick();

  const Options options;
  const transport::Identity identity;
  const transport::StreamFactory streams;
  const transport::PeerPort launcher;
  const Duration period;
  rpc::detail::Loop loop;

  boost::asio::steady_timer tick_timer{loop.io()};
  boost::asio::steady_timer dial_timer{loop.io()};
  std::shared_ptr<transport::Dial> dial;
  std::shared_ptr<launcher_port::FrameConnection> connection;
  Clock::time_point connected_at, last_heard = Clock::now(), due;
  std::chrono::milliseconds pause = kFirstPause;
  // The launcher has been reached at an address of this host.
  bool same_host;
  bool replaced = false, closing = false;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Report> pending;  // not taken yet, oldest first
  size_t num_sent = 0;         // of them, over this connection
  uint64_t last_sequence = 0;
  bool welcomed = false;  // there is a connection that reports may go over
  bool lost = false;
};

SupervisionClient::Impl::Impl(Options o)
    : options(std::move(o)),
      identity(launcher_port::identity_of(options.access, options.access.name)),
      streams(detail::streams_for(identity, options.access.encryption, options.host)),
      launcher{.host = options.host,
               .port = std::to_string(options.port),
               .target = {.name = launcher_port::kStoreName,
                          .purpose = transport::Purpose::kSupervision}},
      period(supervision::heartbeat_period(options.times)),
      same_host(is_loopback_host(options.host)) {
  loop.start();
  loop.post([this] {
    attempt();
    arm();
  });
}

SupervisionClient::Impl::~Impl() {
  loop.post([this] {
    closing = true;
    tick_timer.cancel();
    dial_timer.cancel();
    if (const auto under_way = std::exchange(dial, nullptr))
      under_way->abort(Error(ErrorCode::kClosed, "the client is closed"));
    disconnect();
  });
  loop.stop();
}

void SupervisionClient::Impl::attempt() {
  if (closing) return;
  dial = std::make_shared<transport::Dial>(loop.io(), identity, streams,
                                           transport::outlasting(options.times.limit), launcher);
  dial->start(Deadline::after(std::min(kAttempt, options.times.limit)),
              [this](transport::HandshakeResult result) { on_dialed(std::move(result)); });
}

void SupervisionClient::Impl::on_dialed(transport::HandshakeResult result) {
  dial.reset();
  if (closing) {
    if (result.stream) result.stream->close();
    return;
  }
  if (result.error) {
    // On the same host a refused connection means that the launcher has ended: its port is open for
    // as long as it lives, and no network lies between.
    if (result.nobody_listens && same_host) lose("it has ended");
    return dial_later();
  }

  const auto& stream = *result.stream;
  // If both ends have one address, the launcher runs on this host, whatever its name says.
  same_host |= stream.local_endpoint().address() == stream.remote_endpoint().address();
  connected_at = Clock::now();
  connection = std::make_shared<launcher_port::FrameConnection>(loop.io(), std::move(result.stream),
                                                                supervision::kFrameLimits);
  connection->start([this](std::string_view content) { on_frame(content); },
                    [this](const Error&) {
                      disconnect();
                      dial_later();
                    });
  send({.kind = FromProcess::kHello, .restart = options.restart});
}

void SupervisionClient::Impl::dial_later() {
  if (closing || replaced) return;
  dial_timer.expires_after(transport::with_jitter(pause));
  pause = std::min(pause * 2, kLongestPause);
  dial_timer.async_wait([this](const boost::system::error_code& code) {
    if (!code) attempt();
  });
}

void SupervisionClient::Impl::disconnect() {
  if (const auto before = std::exchange(connection, nullptr)) before->close();
  std::lock_guard lock(mutex);
  welcomed = false;
  num_sent = 0;
  changed.notify_all();
}

void SupervisionClient::Impl::on_frame(std::string_view content) {
  const LauncherFrame frame = supervision::read_launcher_frame(content);
  // Any frame shows that the launcher lives.
  last_heard = Clock::now();
  switch (frame.kind) {
    case FromLauncher::kWelcome:
      pause = kFirstPause;
      {
        std::lock_guard lock(mutex);
        welcomed = true;
      }
      return on_taken(frame.sequence);
    case FromLauncher::kTaken: return on_taken(frame.sequence);
    case FromLauncher::kStop: return on_stop(Duration(frame.within_ms));
    case FromLauncher::kReplaced:
      replaced = true;
      disconnect();
      return lose(kReplaced);
    case FromLauncher::kBeat: return;
  }
}

void SupervisionClient::Impl::on_taken(uint64_t sequence) {
  {
    std::lock_guard lock(mutex);
    if (sequence > last_sequence)
      throw Error(ErrorCode::kCorrupt, "the launcher took what nobody had reported");
    while (!pending.empty() && pending.front().sequence <= sequence) {
      pending.pop_front();
      if (num_sent > 0) --num_sent;
    }
    changed.notify_all();
  }
  send_reports();
}

void SupervisionClient::Impl::on_stop(Duration within) {
  if (!options.on_stop) return;
  options.on_stop(within);
  send({.kind = FromProcess::kStopping});
}

void SupervisionClient::Impl::send(const ProcessFrame& frame) {
  if (connection) connection->send(launcher_port::with_length(to_bytes(frame)));
}

void SupervisionClient::Impl::send_reports() {
  std::lock_guard lock(mutex);
  // Before the welcome it is not known which reports the launcher has taken already.
  if (!welcomed) return;
  for (; num_sent < std::min(pending.size(), kMaxSentReports); ++num_sent) {
    const Report& report = pending[num_sent];
    send({.kind = FromProcess::kReport, .sequence = report.sequence, .report = report.text});
  }
}

void SupervisionClient::Impl::report(std::string text) {
  if (text.size() > kMaxReportBytes)
    throw Error(ErrorCode::kInvalidArgument, "a report to the launcher is too long")
        .with("bytes", text.size())
        .with("max", kMaxReportBytes);
  {
    std::lock_guard lock(mutex);
    // The oldest report that is not on its way gives way. There is one, because kMaxSentReports are
    // fewer than kMaxPendingReports.
    if (pending.size() >= kMaxPendingReports)
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(num_sent));
    pending.push_back({++last_sequence, std::move(text)});
  }
  loop.post([this] { send_reports(); });
}

bool SupervisionClient::Impl::flush(Deadline deadline) {
  std::unique_lock lock(mutex);
  changed.wait_until(lock, deadline.time(),
                     [this] { return pending.empty() || (lost && !welcomed); });
  return pending.empty();
}

void SupervisionClient::Impl::lose(const std::string& why) {
  {
    std::lock_guard lock(mutex);
    if (std::exchange(lost, true)) return;
    changed.notify_all();
  }
  if (options.on_lost) options.on_lost(why);
}

void SupervisionClient::Impl::arm() {
  due = Clock::now() + period;
  tick_timer.expires_at(due);
  tick_timer.async_wait([this](const boost::system::error_code& code) {
    if (code || closing) return;
    tick();
    arm();
  });
}

void SupervisionClient::Impl::tick() {
  // A late tick means that this process stood still, so that time does not count as the launcher's
  // silence.
  const auto now = Clock::now();
  const auto late = now - due;
  if (late > period) {
    last_heard = std::min(last_heard + late, now);
    connected_at = std::min(connected_at + late, now);
  }
  send({.kind = FromProcess::kBeat});

  const auto silence = now - last_heard;
  if (silence > options.times.limit)
    lose("it has been silent for " + format_duration(options.times.limit));

  // A connection may be cut without a word, and then another one may get through.
  const Duration patience = options.times.limit / 2;
  if (connection && silence > patience && now - connected_at > patience) {
    disconnect();
    dial_later();
  }
}

SupervisionClient::SupervisionClient(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

SupervisionClient::~SupervisionClient() = default;

void SupervisionClient::report(std::string text) { impl_->report(std::move(text)); }

bool SupervisionClient::flush(Deadline deadline) { return impl_->flush(deadline); }

}  // namespace retort::rpc
