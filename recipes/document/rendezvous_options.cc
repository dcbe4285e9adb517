#include "recipes/document/rendezvous_options.h"

#include "base/error.h"

namespace retort::recipes {

void RendezvousOptions::validate() const {
  if (address && address->empty())
    throw Error(ErrorCode::kInvalidArgument, "address is empty; write a host, or null");
  if (port < 0 || port > 65535)
    throw Error(ErrorCode::kInvalidArgument, "port must be a port, or 0 for any that is free");
}

}  // namespace retort::recipes
