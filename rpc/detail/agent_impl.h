// What is behind rpc::Agent: the network, the sessions, and the order in which they end. Members
// are used on the loop thread unless they stand under the mutex or are constant.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "rpc/agent.h"
#include "rpc/archive.h"
#include "rpc/detail/agent_shutdown.h"
#include "rpc/detail/connector.h"
#include "rpc/detail/outgoing_calls.h"
#include "rpc/detail/peer_state.h"
#include "rpc/detail/peer_table.h"
#include "rpc/detail/session.h"
#include "rpc/detail/session_host.h"
#include "rpc/flow/receive_budget.h"
#include "rpc/loop/loop.h"
#include "rpc/method_stats.h"
#include "rpc/network/data_plane.h"
#include "rpc/network/network.h"
#include "rpc/transport/dial.h"

namespace retort::rpc {

class Agent::Impl final : public detail::SessionHost {
 public:
  explicit Impl(Options options);
  ~Impl() override;

  // Any thread.
  std::string address() const { return network_->address(); }
  void connect(std::string_view peer, const std::string& address, Deadline deadline,
               Attempts attempts);
  Future<Empty> start_connect(std::string_view peer, const std::string& address, Deadline deadline,
                              Attempts attempts);
  std::string where(const std::string& peer) const { return peers_.address(peer); }
  std::function<void()> call(std::string_view peer, MethodId method, Message message,
                             CallOptions options, std::function<void(Outcome<Message>)> done);
  void serve(std::string_view method, detail::Handler handler);
  void on_peer_lost(std::function<void(const std::string&, const std::string&)> callback);
  std::vector<std::string> peers() const { return peers_.names(); }
  PeerStats stats(std::string_view peer) const { return peers_.stats(peer); }
  uint64_t vain_looks() const { return loop_->vain_looks(); }
  std::vector<MethodTraffic> method_stats() const { return peers_.method_stats(); }
  void close();
  void join();

  // SessionHost: the loop thread.
  const Options& options() const override { return options_; }
  const std::string& incarnation() const override { return incarnation_; }
  std::shared_ptr<detail::Loop> loop() override { return loop_; }
  detail::DataPlane& data() override { return network_->data(); }
  std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) override;
  detail::ReceiveBudget& receive_budget() override { return receive_budget_; }
  bool closing() const override { return shutdown_.begun(); }
  void admit(const std::string& peer, uint64_t restart) override;
  std::shared_ptr<const detail::Handler> handler(const std::string& method) const override;
  std::shared_ptr<detail::PeerState> peer_state(const std::string& peer) override {
    return peers_.state(peer);
  }
  void session_begins(const std::shared_ptr<detail::Session>& session) override;
  void session_up(const std::shared_ptr<detail::Session>& session) override;
  void session_down(const std::shared_ptr<detail::Session>& session, const Error& reason) override;
  void session_idle() override {
    if (shutdown_.begun()) shutdown_.advance_soon();
  }

 private:
  using SessionPtr = std::shared_ptr<detail::Session>;
  using LostCallback = std::function<void(const std::string&, const std::string&)>;

  void dispatch(const std::shared_ptr<detail::OutgoingCall>& call);
  void begin_close();

  const Options options_;
  const std::string incarnation_;
  const std::shared_ptr<detail::Network> network_;
  const std::shared_ptr<detail::Loop> loop_;
  detail::ReceiveBudget receive_budget_;
  detail::PeerTable peers_;  // any thread
  std::atomic<uint64_t> next_call_id_{1};

  std::vector<SessionPtr> sessions_;                   // in the order in which they began
  std::map<std::string, std::vector<SessionPtr>> up_;  // newest last
  std::map<std::string, uint64_t> newest_;             // restarts of each peer that was met
  std::vector<std::weak_ptr<detail::Connector>> connectors_;
  detail::AgentShutdown shutdown_;

  mutable std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::map<std::string, std::shared_ptr<const detail::Handler>> handlers_;
  LostCallback lost_callback_;
};

}  // namespace retort::rpc
