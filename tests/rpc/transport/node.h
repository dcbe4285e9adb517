// A process of a run as the transport sees it, without the agent above: one port, sessions, and
// TensorPipe pipes that belong to them. Every pipe that comes in is served by an echo.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rpc/loop/loop.h"
#include "rpc/transport/acceptor.h"
#include "rpc/transport/detail/context.h"
#include "rpc/transport/sessions.h"

namespace retort::rpc::transport::testing {

using namespace std::chrono_literals;

inline Deadline soon() { return Deadline::after(60s); }

struct NodeOptions {
  Identity identity;
  std::vector<std::string> channels{"basic"};
  AcceptorOptions acceptor;
  ContextOptions context;
  std::chrono::milliseconds dial_timeout{60'000};
  bool tls = false;
};

// Of one run: the same secret, run and schema.
Identity identity_of(std::string name);
NodeOptions node_options(std::string name);

class Node {
 public:
  explicit Node(NodeOptions options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // "127.0.0.1:4000", the first one.
  std::string address() const { return acceptor->addresses().front(); }
  // Connects to a node and waits until it takes pipes. Returns the session's id; throws what the
  // dial said.
  std::string connect(const std::string& peer, const std::string& address);
  std::shared_ptr<tensorpipe::Pipe> pipe(const std::string& session);
  // Ends the session on this side; the other side notices.
  void end_session(const std::string& session);
  // Runs on the loop and waits.
  void on_loop(std::function<void()> task);
  // One dial, no session made of it. The stream stays open for as long as the result lives.
  HandshakeResult dial(const std::string& address, ProofTarget target);
  Proven session(const std::string& id);
  // All contexts closed and joined. No calls afterwards. Repeated calls do nothing.
  void close();

  // Waits until the acceptor has refused that many for this reason; returns how many it has.
  uint64_t refused(Refusal refusal, uint64_t expected);

  const NodeOptions options;
  const std::shared_ptr<rpc::detail::Loop> loop;
  const StreamFactory streams;
  const std::shared_ptr<Sessions> sessions;
  std::shared_ptr<Context> context;
  std::shared_ptr<tensorpipe::Context> tensorpipe;
  std::shared_ptr<Acceptor> acceptor;
  std::atomic<int> pipes_served{0};

 private:
  struct Control;  // a session's control connection, for its whole life
  void on_control(std::shared_ptr<Stream> stream, const Proven& who, bool serves);
  void drop(const std::string& session);
  void accept(const std::shared_ptr<tensorpipe::Listener>& listener);

  std::map<std::string, std::shared_ptr<Control>> controls_;  // loop thread
  bool closed_ = false;
};

}  // namespace retort::rpc::transport::testing
