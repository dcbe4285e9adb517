// A peer that speaks the protocol by hand, so that a test can break every rule at every step. Its
// calls block, each with a deadline of its own.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rpc/detail/frames.h"
#include "rpc/loop/sigpipe_block.h"
#include "rpc/network/peer_address.h"
#include "tests/rpc/transport/node.h"

namespace retort::rpc::testing {

// A blocking TCP connection whose reads give up after 30 s.
class RawSocket {
 public:
  explicit RawSocket(const std::string& address);
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  // An error of the other side, which may close at any time, is ignored.
  void send(std::string_view bytes);
  // nullopt when the other side closed before `size` bytes came.
  std::optional<std::string> receive(size_t size);
  bool closed_by_peer() { return !receive(1).has_value(); }

 private:
  int fd_ = -1;
};

// Proves itself as any peer does; what it says afterwards is the test's.
class RawPeer {
 public:
  RawPeer(const std::string& address, std::string name, std::string target);
  ~RawPeer();

  // Proves the secret. Throws what the proof said.
  void prove();
  void send_ready();
  // Waits for the other side's Ready, then connects both pipes and says which is which.
  void open_pipes(std::array<uint32_t, 2> places = {0, 1});
  // All of the steps above.
  void connect();

  // An error of the other side, which may close at any time, is ignored.
  void send(std::string bytes);
  // The next frame; nullopt at the end of the connection.
  std::optional<std::pair<detail::FrameType, std::string>> receive_frame();
  // Skips other frames; the farewell's code, or nullopt if the connection ended without one.
  std::optional<ErrorCode> receive_farewell();
  void write(size_t pipe, tensorpipe::Message message);  // returns when it is written or failed
  // A message with one payload.
  static tensorpipe::Message message(std::string& payload);

 private:
  std::optional<std::string> receive(size_t size);

  detail::SigpipeBlock no_sigpipe_;  // of this test's own writes, not of the agent's
  transport::testing::Node node_;
  const std::string target_;
  const detail::PeerAddress address_;
  transport::HandshakeResult proved_;
  std::array<std::shared_ptr<tensorpipe::Pipe>, 2> pipes_;
};

}  // namespace retort::rpc::testing
