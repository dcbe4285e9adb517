// The collectives of a group on tensors that are on a device, by NCCL: each is queued behind what
// the current stream has queued, and the group's watch keeps its time (device_watch.h).
//
// Only for groups that have a device_backend, with shapes that have been checked. What a group does
// without one is its own (group.cc).
// Threads: the compute thread. Errors: as Group says.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "parallel/detail/c10d_impl.h"
#include "parallel/detail/work.h"
#include "parallel/group.h"

namespace retort::parallel::detail {

// In place.
std::shared_ptr<Work::Impl> device_all_reduce(const std::shared_ptr<Group::Impl>& group,
                                              at::Tensor& tensor, ReduceOp op);
std::shared_ptr<Work::Impl> device_broadcast(const std::shared_ptr<Group::Impl>& group,
                                             at::Tensor& tensor, int root);
// `out` has all parts, `in` one.
std::shared_ptr<Work::Impl> device_all_gather(const std::shared_ptr<Group::Impl>& group,
                                              at::Tensor& out, const at::Tensor& in);
// `in` has all parts, `out` one.
std::shared_ptr<Work::Impl> device_reduce_scatter(const std::shared_ptr<Group::Impl>& group,
                                                  at::Tensor& out, const at::Tensor& in);

}  // namespace retort::parallel::detail
