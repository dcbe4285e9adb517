// A blocking TCP connection of a stranger or of a liar, and the steps of a proof by hand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rpc/transport/proof.h"

namespace retort::rpc::transport::testing {

// Reads give up after 60 s, which fails the test.
class RawStream {
 public:
  explicit RawStream(const std::string& address);
  explicit RawStream(int fd);
  ~RawStream();
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  // An error of the other side, which may close at any time, is ignored.
  void send(std::string_view bytes);
  // nullopt when the other side closed before `size` bytes came.
  std::optional<std::string> receive(size_t size);
  // Reads until the other side closes; returns what came.
  std::string drain();
  ConnectionFacts facts() const;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// An honest proof over a raw connection. nullopt if the server refused it.
std::optional<Proven> prove(RawStream& stream, const Identity& identity, const ProofTarget& target);
// The reason in the verdict that ends a connection; nullopt if it ends without one.
std::optional<Refusal> refusal_of(RawStream& stream);
// A data frame of TensorPipe's: its length and its bytes.
std::string data_frame(std::string_view body);

}  // namespace retort::rpc::transport::testing
