// What is behind rpc::Agent: the network, the sessions, and the order in which they end. Members
// are used on the loop thread unless they stand under the mutex or are constant.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/agent.h"
#include "rpc/detail/connector.h"
#include "rpc/detail/network.h"
#include "rpc/detail/session.h"

namespace retort::rpc {

class Agent::Impl final : public detail::SessionHost {
 public:
  explicit Impl(Options options);
  ~Impl() override;

  // Any thread.
  std::string address() const;
  void connect(std::string_view peer, const std::string& address, Deadline deadline,
               Attempts attempts);
  Future<Empty> start_connect(std::string_view peer, const std::string& address, Deadline deadline,
                              Attempts attempts);
  std::string where(const std::string& peer) const;
  std::function<void()> call(std::string_view peer, MethodId method, Message message,
                             CallOptions options, std::function<void(Outcome<Message>)> done);
  void serve(std::string_view method, detail::Handler handler);
  void on_peer_lost(std::function<void(const std::string&, const std::string&)> callback);
  std::vector<std::string> peers() const;
  PeerStats stats(std::string_view peer) const;
  uint64_t vain_looks() const { return loop_->vain_looks(); }
  std::vector<MethodTraffic> method_stats() const;
  void close();
  void join();

  // SessionHost: the loop thread.
  const Options& options() const override { return options_; }
  const std::string& incarnation() const override { return incarnation_; }
  std::shared_ptr<detail::Loop> loop() override { return loop_; }
  detail::DataPlane& data() override { return network_->data(); }
  std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) override;
  detail::ReceiveBudget& receive_budget() override { return receive_budget_; }
  bool closing() const override { return closing_; }
  void admit(const std::string& peer, uint64_t restart) override;
  std::shared_ptr<const detail::Handler> handler(const std::string& method) const override;
  std::shared_ptr<detail::PeerState> peer_state(const std::string& peer) override;
  void session_begins(const std::shared_ptr<detail::Session>& session) override;
  void session_up(const std::shared_ptr<detail::Session>& session) override;
  void session_down(const std::shared_ptr<detail::Session>& session, const Error& reason) override;
  void session_idle() override;

 private:
  using SessionPtr = std::shared_ptr<detail::Session>;
  struct Peer {
    std::shared_ptr<detail::PeerState> state;
    bool live = false;
    std::string address;  // where it was reached last
  };

  void dispatch(const std::shared_ptr<detail::OutgoingCall>& call);
  std::shared_ptr<detail::PeerState> live_peer(const std::string& peer) const;
  void begin_close();
  void advance_close();

  const Options options_;
  const std::string incarnation_;
  const std::shared_ptr<detail::Network> network_;
  const std::shared_ptr<detail::Loop> loop_;
  detail::ReceiveBudget receive_budget_;
  boost::asio::steady_timer drain_timer_;
  std::atomic<uint64_t> next_call_id_{1};

  std::vector<SessionPtr> sessions_;                   // in the order in which they began
  std::map<std::string, std::vector<SessionPtr>> up_;  // newest last
  std::map<std::string, uint64_t> newest_;             // restarts of each peer that was met
  std::vector<std::weak_ptr<detail::Connector>> connectors_;
  bool closing_ = false, drained_ = false, down_ = false, advance_posted_ = false;
  Promise<Empty> down_promise_;

  mutable std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::map<std::string, std::shared_ptr<const detail::Handler>> handlers_;
  std::map<std::string, Peer> peers_;
  std::function<void(const std::string&, const std::string&)> lost_callback_;
  bool closed_ = false;

  std::mutex join_mutex_;
  Future<Empty> down_future_;
  bool joined_ = false;
};

}  // namespace retort::rpc
