#include "tests/rpc/simulation/network.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/error.h"
#include "tests/rpc/simulation/memory_pipe.h"
#include "tests/rpc/simulation/memory_stream.h"
#include "tests/rpc/simulation/port_dial.h"

namespace retort::rpc::simulation {
namespace {

// The scheduler runs its handlers.
class SimulatedLoop final : public rpc::detail::Loop {
 public:
  SimulatedLoop(Scheduler& scheduler, Freezable* owner) : scheduler_(scheduler), owner_(owner) {}
  ~SimulatedLoop() override { scheduler_.remove_loop(io()); }

  void start() override { scheduler_.add_loop(io(), owner_); }
  void stop() override {
    end_work();
    while (!io().stopped())
      scheduler_.sleep(milliseconds(1));
    scheduler_.remove_loop(io());
  }

 private:
  Scheduler& scheduler_;
  Freezable* const owner_;
};

class Listener final : public rpc::detail::PipeListener {
 public:
  explicit Listener(std::function<void()> close) : close_(std::move(close)) {}
  void close() override { close_(); }

 private:
  const std::function<void()> close_;
};

}  // namespace

std::shared_ptr<Host> Network::add_host(std::string name) {
  auto host =
      std::make_shared<Host>(*this, std::move(name), "10.0.0.1:" + std::to_string(next_port_++));
  hosts_.push_back(host);
  return host;
}

Host* Network::at(const std::string& address) {
  for (const auto& weak : hosts_)
    if (const auto host = weak.lock(); host && host->address_ == address) return host.get();
  return nullptr;
}

void Network::connect(ConnectionKind kind, const std::shared_ptr<End>& one,
                      const std::shared_ptr<End>& other) {
  auto connection = std::make_shared<Connection>();
  connection->kind = kind;
  connection->ends[0] = one;
  connection->ends[1] = other;
  connections_.push_back(connection);
  if (one->host().killed() || other->host().killed() || parted(one->host(), other->host()))
    mute(*connection, true);
}

milliseconds Network::work(Host& host, std::chrono::microseconds time) {
  traffic_.worked += time;
  const auto each = time / std::max<int64_t>(1, options_.cores);
  Clock::time_point& free = options_.cores > 0 ? machine_free_ : host.core_free_;
  free = std::max(free, scheduler_.now()) + each;
  return std::chrono::ceil<milliseconds>(free - scheduler_.now());
}

milliseconds Network::session_time(Host& host) {
  if (options_.session_us == 0) return milliseconds(0);
  return work(host, std::chrono::microseconds(options_.session_us));
}

void Network::count_heartbeat(Host& host) {
  if (options_.heartbeat_us > 0) work(host, std::chrono::microseconds(options_.heartbeat_us));
}

milliseconds Network::wire_time(Host& host, uint64_t bytes) {
  const milliseconds of_connection(bytes / options_.bytes_per_ms);
  if (options_.host_bytes_per_ms == 0) return of_connection;
  host.wire_free_ = std::max(host.wire_free_, scheduler_.now()) +
                    std::chrono::microseconds(1000 * bytes / options_.host_bytes_per_ms);
  return std::max(of_connection,
                  std::chrono::ceil<milliseconds>(host.wire_free_ - scheduler_.now()));
}

std::vector<std::shared_ptr<Connection>> Network::open_connections() {
  std::erase_if(connections_, [](const auto& connection) {
    return connection->ends[0].expired() && connection->ends[1].expired();
  });
  std::vector<std::shared_ptr<Connection>> open;
  for (const auto& connection : connections_) {
    const auto one = connection->ends[0].lock(), other = connection->ends[1].lock();
    if (one && other && !one->closed() && !other->closed()) open.push_back(connection);
  }
  return open;
}

std::shared_ptr<Connection> Network::pick_connection(ConnectionKind kind) {
  auto open = open_connections();
  std::erase_if(open, [kind](const auto& connection) { return connection->kind != kind; });
  return open.empty() ? nullptr : open[scheduler_.pick(open.size())];
}

void Network::mute(const Connection& connection, bool both) {
  for (int i = 0; i < (both ? 2 : 1); ++i) {
    const auto sender = connection.ends[i].lock(), receiver = connection.ends[1 - i].lock();
    if (sender) sender->mute();
    if (receiver && !receiver->deaf_since) receiver->deaf_since = scheduler_.now();
  }
  if (connection.kind == ConnectionKind::kControl) return;
  const milliseconds noticed = options_.data_silence + latency();
  for (const auto& end : connection.ends)
    scheduler_.after(noticed, [end] {
      if (const auto there = end.lock()) there->reset();
    });
}

void Network::reset(const Connection& connection) {
  for (const auto& end : connection.ends)
    scheduler_.after(latency(), [end] {
      if (const auto there = end.lock()) there->reset();
    });
}

void Network::kill(Host& host, bool silent) {
  host.killed_ = true;
  for (const auto& connection : open_connections()) {
    const auto one = connection->ends[0].lock(), other = connection->ends[1].lock();
    if (&one->host() != &host && &other->host() != &host) continue;
    if (silent)
      mute(*connection, true);
    else
      reset(*connection);
  }
}

void Network::partition(const Host& one, const Host& other) {
  partitions_.emplace(std::minmax(one.address_, other.address_));
  for (const auto& connection : open_connections())
    if (parted(connection->ends[0].lock()->host(), connection->ends[1].lock()->host()))
      mute(*connection, true);
}

bool Network::parted(const Host& one, const Host& other) const {
  return partitions_.count(std::minmax(one.address_, other.address_)) > 0;
}

void Network::thaw(Host& host) {
  host.frozen = false;
  for (const auto& connection : open_connections())
    for (const auto& weak : connection->ends) {
      const auto end = weak.lock();
      if (&end->host() == &host && end->deaf_since) end->deaf_since = scheduler_.now();
    }
}

size_t Network::num_ends() {
  size_t alive = 0;
  for (const auto& connection : connections_)
    alive += !connection->ends[0].expired() + !connection->ends[1].expired();
  return alive;
}

// Of a session, by its control connection: what comes on its others is no sign of life of this one.
std::string Network::find_deaf(milliseconds longest) {
  for (const auto& connection : open_connections()) {
    if (connection->kind != ConnectionKind::kControl) continue;
    for (const auto& weak : connection->ends) {
      const auto end = weak.lock();
      if (!end->up || !end->deaf_since || end->host().frozen) continue;
      if (scheduler_.now() - *end->deaf_since > longest) return end->host().name();
    }
  }
  return {};
}

Host::Host(simulation::Network& network, std::string name, std::string address)
    : network_(network),
      name_(std::move(name)),
      address_(std::move(address)),
      loop_(std::make_shared<SimulatedLoop>(network.scheduler(), this)) {}

Host::~Host() = default;

void Host::post(std::function<void()> task) { loop_->post(std::move(task)); }

std::shared_ptr<transport::PeerDial> Host::dial(transport::PeerPort peer) {
  return std::make_shared<PortDial>(shared_from_this(), std::move(peer));
}

void Host::open(const transport::Proven& control,
                const std::optional<rpc::detail::PeerAddress>& dialed) {
  if (dialed) dialed_[control.session] = dialed->host + ":" + dialed->port;
}

void Host::end(const std::string& session) {
  dialed_.erase(session);
  listeners_.erase(session);
}

std::shared_ptr<rpc::detail::PipeListener> Host::listen(const std::string& session, size_t,
                                                        OnPipe on_pipe) {
  listeners_[session] = std::move(on_pipe);
  return std::make_shared<Listener>([weak = weak_from_this(), session] {
    if (const auto host = weak.lock()) host->listeners_.erase(session);
  });
}

std::shared_ptr<rpc::detail::MessagePipe> Host::connect(const std::string& session,
                                                        const std::string& peer) {
  auto ours = std::make_shared<MemoryPipe>(shared_from_this());
  Host* const there = network_.at(dialed_.at(session));
  if (there == nullptr || there->name_ != peer) {
    ours->reset();
    return ours;
  }

  // The far end learns of it when its listener does; a listener that is gone closes it.
  auto theirs = std::make_shared<MemoryPipe>(there->shared_from_this());
  MemoryPipe::join(ours, theirs);
  network_.connect(ConnectionKind::kData, ours, theirs);
  network_.scheduler().after(network_.latency(),
                             [host = there->shared_from_this(), session, theirs] {
                               host->post([host, session, theirs] {
                                 const auto listener = host->listeners_.find(session);
                                 if (listener == host->listeners_.end()) return theirs->close();
                                 const OnPipe on_pipe = listener->second;
                                 on_pipe(std::nullopt, theirs);
                               });
                             });
  return ours;
}

}  // namespace retort::rpc::simulation
