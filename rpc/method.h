// A remote method: its name on the wire and the types of its request and reply. Both types have
//     template <class Archive> void serialize(Archive& archive);
// in which at::Tensor members travel out of band (rpc/archive.h).
#pragma once

#include <string_view>

#include "base/future.h"  // Empty: a request or reply without a value

namespace retort::rpc {

template <class Request, class Reply>
struct Method {
  std::string_view name;    // "teacher.forward"
  bool idempotent = false;  // may be sent again after a lost peer came back
};

}  // namespace retort::rpc
