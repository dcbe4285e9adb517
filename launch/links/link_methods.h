// What two processes that measure a link ask each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "rpc/method.h"

namespace retort::launch::links {

// A message of bytes, both ways: what comes back has as many as were wanted.
struct LinkMessage {
  int64_t wanted_bytes = 0;
  at::Tensor bytes;  // uint8; undefined for none

  template <class A>
  void serialize(A& archive) {
    archive(wanted_bytes, bytes);
  }
};

inline constexpr rpc::Method<LinkMessage, LinkMessage> kLinkEcho{"link.echo", true};

}  // namespace retort::launch::links
