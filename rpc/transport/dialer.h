// Where the transport gets its outgoing connections from.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class Dialer {
 public:
  // An error, or a stream whose other end has proved that it belongs to the session.
  using Dialed = std::function<void(std::optional<Error>, std::shared_ptr<Stream>)>;

  virtual ~Dialer() = default;
  // Calls `done` once, on the loop thread. Called there.
  virtual void dial(const std::string& session, Dialed done) = 0;
};

}  // namespace retort::rpc::transport
