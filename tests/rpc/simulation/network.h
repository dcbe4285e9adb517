// The network of a simulation: hosts that dial each other, streams and pipes in memory, and what
// can go wrong with them.
//
// Each connection keeps its own order; what two connections carry arrives in any order. Delays come
// from the seed. What production code has below a session (sockets, proofs, TensorPipe) is
// replaced; what a message announces is checked and given memory by the production functions
// (rpc/detail/data_pipe.h).
//
// Faults: see Network. A data connection that went silent is noticed by both ends within
//   `data_silence`, as the transport's own probes do (rpc/transport/detail/connection_core.h).
// Threads: the scheduler's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rpc/network/network.h"
#include "tests/rpc/simulation/scheduler.h"

namespace retort::rpc::simulation {

class Host;

// One end of a connection: what the network does to it. Streams and pipes are such.
class End {
 public:
  explicit End(std::shared_ptr<Host> host) : host_(std::move(host)) {}
  virtual ~End() = default;
  Host& host() { return *host_; }
  bool closed() const { return closed_; }
  // From now on nothing that this end sends arrives, and nobody is told.
  void mute() { muted_ = true; }
  // The connection breaks: this end is told.
  virtual void reset() = 0;
  // Since when it is up and hears nothing because its other end is muted; empty: it hears.
  std::optional<Clock::time_point> deaf_since;
  // A session speaks here that is up: it has sent a heartbeat.
  bool up = false;

 protected:
  const std::shared_ptr<Host> host_;
  bool closed_ = false, muted_ = false;
};

enum class ConnectionKind { kControl, kData };
struct Connection {
  ConnectionKind kind;
  std::weak_ptr<End> ends[2];
};

class Network {
 public:
  struct Options {
    int64_t latency_ms = 3;           // at most
    uint64_t bytes_per_ms = 100'000;  // of a data connection
    milliseconds data_silence{400};   // until a silent data connection is noticed
    uint64_t host_bytes_per_ms = 0;   // that leave a host over all its connections; 0: any number
    int64_t session_us = 0;           // of a core, that each end of a new session takes
    int64_t heartbeat_us = 0;         // and each heartbeat
    int64_t cores = 0;                // of one machine that all hosts share; 0: each has its own
  };
  // What has passed.
  struct Traffic {
    uint64_t control_bytes = 0, data_bytes = 0, data_messages = 0, dials = 0;
    std::chrono::microseconds worked{0};  // by cores
  };
  Network(Scheduler& scheduler, Options options) : scheduler_(scheduler), options_(options) {}

  Scheduler& scheduler() { return scheduler_; }
  const Options& options() const { return options_; }

  // A host at an address of its own.
  std::shared_ptr<Host> add_host(std::string name);

  // Any one that is open at both ends; null if there is none.
  std::shared_ptr<Connection> pick_connection(ConnectionKind kind);
  // What the first end sends (`both`: and the second) does not arrive any more.
  void mute(const Connection& connection, bool both);
  void reset(const Connection& connection);
  // The process is gone: nobody answers at its port; its connections are reset, or silent when the
  // whole machine went.
  void kill(Host& host, bool silent);
  // New connections between the two are not answered, existing ones silent.
  void partition(const Host& one, const Host& other);
  void heal() { partitions_.clear(); }
  // A frozen host goes on; what it did not hear meanwhile is its own silence.
  void thaw(Host& host);

  Traffic& traffic() { return traffic_; }
  // From now on until one end of a session is made at this host, whose turn comes after what it has
  // to do already; until so many bytes have left it.
  milliseconds session_time(Host& host);
  void count_heartbeat(Host& host);
  milliseconds wire_time(Host& host, uint64_t bytes);

  // Ends that are alive, open or not.
  size_t num_ends();
  // An end that heard nothing for longer than this and is not closed; empty if there is none.
  std::string find_deaf(milliseconds longest);

 private:
  friend class Host;
  friend class PortDial;
  bool parted(const Host& one, const Host& other) const;
  Host* at(const std::string& address);
  milliseconds latency() { return scheduler_.up_to(options_.latency_ms) + milliseconds(1); }
  void connect(ConnectionKind kind, const std::shared_ptr<End>& one,
               const std::shared_ptr<End>& other);
  std::vector<std::shared_ptr<Connection>> open_connections();

  Scheduler& scheduler_;
  const Options options_;
  std::vector<std::weak_ptr<Host>> hosts_;
  std::list<std::shared_ptr<Connection>> connections_;
  std::set<std::pair<std::string, std::string>> partitions_;  // addresses
  uint64_t next_port_ = 1, next_session_ = 1;
  // A core's next work at this host; until it is done.
  milliseconds work(Host& host, std::chrono::microseconds time);

  Traffic traffic_;
  Clock::time_point machine_free_{};
};

// What an agent is given as its network.
class Host final : public rpc::detail::Network,
                   public rpc::detail::DataPlane,
                   public Freezable,
                   public std::enable_shared_from_this<Host> {
 public:
  Host(simulation::Network& network, std::string name, std::string address);
  ~Host() override;

  simulation::Network& network() { return network_; }
  const std::string& name() const { return name_; }
  bool killed() const { return killed_; }
  // Runs on the host's loop.
  void post(std::function<void()> task);

  // rpc::detail::Network
  std::shared_ptr<rpc::detail::Loop> loop() override { return loop_; }
  rpc::detail::DataPlane& data() override { return *this; }
  void open_port(OnControl on_control) override { on_control_ = std::move(on_control); }
  std::string address() const override { return address_; }
  void close_port() override { on_control_ = nullptr; }
  std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) override;

  // rpc::detail::DataPlane
  void open(const transport::Proven& control,
            const std::optional<rpc::detail::PeerAddress>& dialed) override;
  void end(const std::string& session) override;
  std::shared_ptr<rpc::detail::PipeListener> listen(const std::string& session, size_t num_pipes,
                                                    OnPipe on_pipe) override;
  std::shared_ptr<rpc::detail::MessagePipe> connect(const std::string& session,
                                                    const std::string& peer) override;
  void close() override {}
  void join() override {}

 private:
  friend class simulation::Network;
  friend class PortDial;

  simulation::Network& network_;
  const std::string name_, address_;
  const std::shared_ptr<rpc::detail::Loop> loop_;
  OnControl on_control_;
  std::map<std::string, std::string> dialed_;  // session -> address
  std::map<std::string, OnPipe> listeners_;    // by session
  Clock::time_point core_free_{}, wire_free_{};
  bool killed_ = false;
};

}  // namespace retort::rpc::simulation
