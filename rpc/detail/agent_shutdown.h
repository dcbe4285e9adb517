// How an agent ends: stop accepting, let what runs finish, cancel the rest, say goodbye, join.
//
//   begin()  -> nobody is accepted any more; who has not come up ends
//   drain()  -> what has not begun is refused; calls that run have kDrainTimeout
//   advance  -> once all sessions are idle each says goodbye; after the last the data plane closes
//   join()   -> waits for that, then ends the loop
//
// Threads: the loop thread, but for join().
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/future.h"
#include "rpc/detail/session.h"
#include "rpc/loop/loop.h"
#include "rpc/network/network.h"

namespace retort::rpc::detail {

Error agent_closed();

class AgentShutdown {
 public:
  // `sessions`: all that there are, up or not; both references outlive it. `name`: the agent's.
  AgentShutdown(const std::string& name, std::shared_ptr<Network> network,
                const std::vector<std::shared_ptr<Session>>& sessions);

  void begin();
  bool begun() const { return begun_; }
  void drain();
  // A call, a write or a session has ended, after begin().
  void advance_soon();
  // After begin() was posted; whoever comes later waits likewise. Not on the loop thread.
  void join();

 private:
  using Sessions = std::vector<std::shared_ptr<Session>>;

  void advance();

  const std::string& name_;
  const std::shared_ptr<Network> network_;
  const std::shared_ptr<Loop> loop_;
  const Sessions& sessions_;
  boost::asio::steady_timer drain_timer_;
  bool begun_ = false, drained_ = false, down_ = false, advance_posted_ = false;
  Promise<Empty> down_promise_;

  std::mutex join_mutex_;
  Future<Empty> down_future_;
  bool joined_ = false;
};

}  // namespace retort::rpc::detail
