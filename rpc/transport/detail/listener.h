// The listener of one session, without a socket: its address is "session:<id>", and its connections
// come from the acceptor, which has proved that they belong to that session.
//
// TensorPipe's own listener ends for good when a connection that it was given fails before its
// first object was read. So a connection is handed over only when its first frame is wholly here.
// Threads: the functions of ListenerCore on the loop thread; Listener from any.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "rpc/transport/detail/connection_core.h"
#include "rpc/transport/detail/tensorpipe_abi.h"

namespace retort::rpc::transport {

class Context;

class ListenerCore : public std::enable_shared_from_this<ListenerCore> {
 public:
  using AcceptHandler = tensorpipe::transport::Listener::accept_callback_fn;

  explicit ListenerCore(std::string session) : session_(std::move(session)) {}
  const std::string& session() const { return session_; }

  void accept(AcceptHandler handler);
  // A connection of this session, not yet begun; `stream` is proven.
  void deliver(const std::shared_ptr<ConnectionCore>& connection, std::shared_ptr<Stream> stream);
  void close();

 private:
  void hand_over(std::shared_ptr<ConnectionCore> connection);

  const std::string session_;
  bool closed_ = false;
  std::deque<AcceptHandler> waiting_;
  std::deque<std::shared_ptr<tensorpipe::transport::Connection>> ready_;
};

// What TensorPipe holds. Dropping it closes it.
class Listener final : public tensorpipe::transport::Listener {
 public:
  Listener(std::shared_ptr<Context> context, std::shared_ptr<ListenerCore> core);
  ~Listener() override { close(); }

  void accept(accept_callback_fn fn) override;
  std::string addr() const override;
  void setId(std::string) override {}
  void close() override;

 private:
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<ListenerCore> core_;
};

}  // namespace retort::rpc::transport
