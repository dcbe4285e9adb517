// The sessions that data connections may belong to: their keys, and where their other end is. Both
// directions use it: the acceptor asks for a key, the transport for a connection.
//
// Use: open() when a control connection has been proved, end() when the session ends.
//   options.find_session = [sessions](auto& id) { return sessions->find(id); }; Context
//   context(loop, {}, sessions);
// Errors: a connection that was closed or refused for want of room is tried again, after pauses
//   that grow and differ, until the deadline. Others end the dial.
// Threads: the loop thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rpc/loop/loop.h"
#include "rpc/transport/dial.h"
#include "rpc/transport/dialer.h"
#include "rpc/transport/proof.h"

namespace retort::rpc::transport {

struct SessionsOptions {
  std::chrono::milliseconds dial_timeout{15'000};  // for one data connection, all attempts
  SocketOptions sockets;
};

class Sessions final : public Dialer, public std::enable_shared_from_this<Sessions> {
 public:
  Sessions(std::shared_ptr<rpc::detail::Loop> loop, Identity identity, StreamFactory streams,
           SessionsOptions options = {});
  ~Sessions() override;

  // `host` and `port` are empty on the side that does not dial.
  void open(const Proven& control, std::string host, std::string port);
  // Aborts the dials of this session.
  void end(const std::string& session);
  // Ends all, before the loop is to end: a dial would keep it up to its deadline.
  void close();
  std::optional<SessionKey> find(const std::string& session) const;

  void dial(const std::string& session, Dialed done) override;

 private:
  class Attempts;
  struct Entry {
    SessionKey key;
    std::string host, port;
  };

  const std::shared_ptr<rpc::detail::Loop> loop_;
  const Identity identity_;
  const StreamFactory streams_;
  const SessionsOptions options_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::set<std::shared_ptr<Attempts>>> dials_;  // by session
};

}  // namespace retort::rpc::transport
