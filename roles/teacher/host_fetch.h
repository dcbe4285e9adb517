// What all ranks of a group need and one rank of each host asks another role for.
//
//   teacher ---> first rank of host A ---> the other ranks of host A
//           ---> first rank of host B ---> the other ranks of host B
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "parallel/group.h"

namespace retort::roles {

// What `fetch` returns, a tensor [sizes] in host memory. Of the ranks with the same `host` the
// first one of the group calls it, the others get its tensor.
// Collectives: two votes and an all-gather of 8 bytes on the group, then two messages from the
//   first rank of a host to each of its others. Every rank of the group calls.
// Errors: what a fetch throws, on every rank (parallel/vote.h).
at::Tensor fetch_once_a_host(parallel::Group& group, const std::string& host, at::IntArrayRef sizes,
                             const std::function<at::Tensor()>& fetch);

}  // namespace retort::roles
