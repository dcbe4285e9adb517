#include "rpc/rendezvous/store_session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "rpc/launcher_port/store_identity.h"

namespace retort::rpc::rendezvous {
namespace {

// One attempt takes so long at most: a server that takes the connection but stays silent is dialed
// again.
constexpr std::chrono::seconds kAttempt{10};

std::string address_text(const std::string& host, const std::string& port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + port;
}

}  // namespace

StoreSession::StoreSession(transport::Identity identity, transport::StreamFactory streams,
                           const std::string& host, uint16_t port, Deadline deadline,
                           const StoreLimits& limits, const transport::SocketOptions& sockets)
    : identity_(std::move(identity)),
      streams_(std::move(streams)),
      server_{.host = host,
              .port = std::to_string(port),
              .target = {.name = launcher_port::kStoreName}},
      address_(address_text(host, server_.port)),
      limits_(limits),
      sockets_(sockets),
      connect_deadline_(deadline),
      retry_timer_(loop_.io()) {
  identity_.validate();
  Future<Empty> connected = connected_.future();
  loop_.start();
  loop_.post([this] { attempt(); });
  try {
    connected.get();
  } catch (...) {
    // After an exception no destructor runs, so the loop's thread is ended here.
    stop();
    throw;
  }
}

StoreSession::~StoreSession() { stop(); }

void StoreSession::stop() {
  loop_.post([this] {
    if (connection_) connection_->close();
  });
  loop_.stop();
}

void StoreSession::attempt() {
  const auto dial =
      std::make_shared<transport::Dial>(loop_.io(), identity_, streams_, sockets_, server_);
  const Deadline attempt_deadline = Deadline::after(kAttempt);
  dial->start(Deadline(std::min(connect_deadline_.time(), attempt_deadline.time())),
              [this](transport::HandshakeResult result) { on_dialed(std::move(result)); });
}

void StoreSession::on_dialed(transport::HandshakeResult result) {
  if (result.error) {
    const bool is_stranger = transport::is_somebody_else(*result.error);
    if (is_stranger) note_stranger(*result.error);
    if (is_stranger || transport::may_pass(*result.error)) return retry(*result.error);
    connected_.set_error(std::make_exception_ptr(*result.error));
    return;
  }
  connection_ = std::make_shared<launcher_port::FrameConnection>(
      loop_.io(), std::move(result.stream), limits_.frames());
  connection_->start([this](std::string_view content) { on_reply(content); },
                     [this](const Error& error) { on_end(error); });
  connected_.set_value(Empty{});
}

// A wrong secret looks like a stranger too, so the log says why this process waits.
void StoreSession::note_stranger(const Error& error) {
  const bool is_first = !refused_;
  refused_ = error;
  if (!is_first) return;
  RETORT_LOG(kWarning) << "whoever answers at " << address_ << " is not the store of this run, or "
                       << "does not take this process for one of it: " << error.message()
                       << "; trying again until the deadline, in "
                       << format_duration(connect_deadline_.remaining());
}

void StoreSession::retry(const Error& reason) {
  const std::chrono::milliseconds pause = pause_.next();
  if (connect_deadline_.remaining() <= pause) {
    // The answer of a stranger tells more than that time is up: the secret or the address may be
    // wrong.
    if (refused_) {
      connected_.set_error(std::make_exception_ptr(refused_->with("store", address_)));
      return;
    }
    connected_.set_error(std::make_exception_ptr(
        Error(ErrorCode::kTimeout,
              "the run's store did not answer by the deadline; last: " + reason.message())
            .with("store", address_)));
    return;
  }

  retry_timer_.expires_after(pause);
  retry_timer_.async_wait([this](const boost::system::error_code& code) {
    if (!code) attempt();
  });
}

StoreReply StoreSession::call(StoreRequest request, Deadline deadline) {
  Promise<StoreReply> promise;
  Future<StoreReply> reply = promise.future();
  {
    std::lock_guard lock(mutex_);
    // The promise is entered before the request leaves, so that the reply finds it.
    if (ended_) throw Error(*ended_);
    request.id = next_id_++;
    pending_.emplace(request.id, promise);
  }

  // From here on the request must be forgotten, however it ends.
  try {
    std::string content = to_bytes(request);
    if (content.size() > limits_.max_frame_bytes)
      throw Error(ErrorCode::kInvalidArgument, "the keys and values of one request are too large")
          .with("bytes", content.size())
          .with("max", limits_.max_frame_bytes);
    loop_.post([this, frame = launcher_port::with_length(content)]() mutable {
      if (connection_) connection_->send(std::move(frame));
    });
    return reply.get(deadline);
  } catch (...) {
    std::lock_guard lock(mutex_);
    pending_.erase(request.id);
    throw;
  }
}

bool StoreSession::ended() const {
  std::lock_guard lock(mutex_);
  return ended_.has_value();
}

void StoreSession::on_reply(std::string_view content) {
  StoreReply reply = from_bytes<StoreReply>(content);
  std::optional<Promise<StoreReply>> promise;
  {
    std::lock_guard lock(mutex_);
    if (reply.id == 0 || reply.id >= next_id_)
      throw Error(ErrorCode::kCorrupt, "the store answered what nobody had asked");
    const auto found = pending_.find(reply.id);
    if (found == pending_.end()) return;  // its caller has given up
    promise = std::move(found->second);
    pending_.erase(found);
  }
  promise->set_value(std::move(reply));
}

void StoreSession::on_end(const Error& error) {
  const Error lost =
      Error(ErrorCode::kPeerLost, "the connection to the run's store is lost: " + error.message())
          .with("store", address_);
  std::unordered_map<uint64_t, Promise<StoreReply>> pending;
  {
    std::lock_guard lock(mutex_);
    ended_ = lost;
    pending.swap(pending_);
  }
  // The callers are woken without the lock, which they may take at once.
  for (auto& [id, promise] : pending)
    promise.set_error(std::make_exception_ptr(lost));
}

}  // namespace retort::rpc::rendezvous
