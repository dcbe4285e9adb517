// TensorPipe's transport over the project's own connections, on the agent's loop.
//
// Use:
//   auto context = std::make_shared<Context>(loop, ContextOptions{}, dialer);
//   tensorpipe_context.registerTransport(100, "retort", context);
//   server: listener = tensorpipe_context.listen({"retort://" + session_address(id)});
//           context->deliver(id, stream)        for every data connection that the acceptor proved
//   client: pipe = tensorpipe_context.connect("retort://" + session_address(id));
//           the context asks the dialer for each connection that the pipe needs
//   both:   context->end_session(id)            when the session ends, however it ends
//
// Ending: close() fails every connection and listener; join() waits until each has called back for
//   the last time. The loop must run until then; if nothing was ever connected it need not run.
// Threads: connect(), listen(), close() from any; join() from any but the loop's; deliver() and
//   end_session() on the loop thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "rpc/loop/loop.h"
#include "rpc/transport/detail/frame_reader.h"
#include "rpc/transport/detail/tensorpipe_abi.h"
#include "rpc/transport/dialer.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class ConnectionCore;
class ListenerCore;

struct ContextOptions {
  FrameLimits limits;
  // How long an accepted connection may take to its first frame.
  std::chrono::milliseconds greeting_timeout{15'000};
  // Probes on idle connections (ConnectionCore); 0: none, and silence is no failure.
  std::chrono::milliseconds probe_interval{0}, silence_timeout{15'000};
  // Called for each connection of a pipe that belongs to one of TensorPipe's channels. Any thread.
  std::function<void(const std::string& session, const std::string& channel)> on_channel = {};
};

// "session:<id>", the address of a session's listener; and the id in it, or "" if it is none.
std::string session_address(std::string_view session);
std::string session_of(std::string_view address);
// The channel that TensorPipe means a connection of this id for ("x.ch_cma_0": cma); "": none, it
// is the pipe's own.
std::string channel_of(std::string_view id);

class Context final : public tensorpipe::transport::Context,
                      public std::enable_shared_from_this<Context> {
 public:
  Context(std::shared_ptr<rpc::detail::Loop> loop, ContextOptions options,
          std::shared_ptr<Dialer> dialer);
  ~Context() override;

  // TensorPipe calls these.
  std::shared_ptr<tensorpipe::transport::Connection> connect(std::string address) override;
  std::shared_ptr<tensorpipe::transport::Listener> listen(std::string address) override;
  bool isViable() const override { return true; }
  const std::string& domainDescriptor() const override { return domain_; }
  void setId(std::string) override {}
  void close() override;
  void join() override;

  // The agent calls these. False, and the stream is closed, if nobody listens for that session.
  bool deliver(const std::string& session, std::shared_ptr<Stream> stream);
  void end_session(const std::string& session);
  size_t num_connections() const;

  // Connections and listeners call these.
  rpc::detail::Loop& loop() { return *loop_; }
  const ContextOptions& options() const { return options_; }
  template <class Task>
  void run_on_loop(Task task) {
    RETORT_CHECK(loop_->post(std::move(task))) << "the loop ended before the transport was joined";
  }
  // After the loop has ended nothing runs there any more, and the task runs in the caller.
  template <class Task>
  void run_on_loop_or_here(Task task) {
    if (!loop_->post(task)) task();
  }
  void forget(const std::shared_ptr<ConnectionCore>& connection);
  void forget_listener(const std::shared_ptr<ListenerCore>& listener);

 private:
  // Enters a new connection, or finishes it at once if the context is closed.
  std::shared_ptr<ConnectionCore> new_connection(const std::string& session);

  const std::shared_ptr<rpc::detail::Loop> loop_;
  const ContextOptions options_;
  const std::shared_ptr<Dialer> dialer_;
  const std::string domain_ = "retort:1";

  mutable std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable emptied_;
  bool closed_ = false;  // nothing new begins
  bool ended_ = false;   // and what there was has been told
  std::set<std::shared_ptr<ConnectionCore>> connections_;
  std::map<std::string, std::shared_ptr<ListenerCore>> listeners_;
};

}  // namespace retort::rpc::transport
