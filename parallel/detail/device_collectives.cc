#include "parallel/detail/device_collectives.h"

#include <exception>
#include <vector>

#include "parallel/detail/device_watch.h"

namespace retort::parallel::detail {
namespace {

// Queues one collective of NCCL and tells the group's watch of it.
template <class F>
std::shared_ptr<Work::Impl> queue(const std::shared_ptr<Group::Impl>& group, const char* operation,
                                  const at::Tensor& tensor, F&& start) {
  auto work = new_work(group, operation, &tensor);
  // The watch is told before the call, which can hang itself: NCCL connects the members of a group
  // in their first operation.
  group->watch->begin(*group->watched, {nullptr, operation, work->shape, work->sequence});
  try {
    work->parts.push_back(start(*group->device_backend));
  } catch (const std::exception& e) {
    group->watch->withdraw(*group->watched);
    // An abort ends the call with an error of NCCL's, which does not say why it came.
    group->failure = group->watch->failure();
    if (group->failure) throw *group->failure;
    throw work->fail(e);
  }
  // A limit would make wait() hold up the thread; the watch keeps the time instead.
  work->limit = kNoTimeout;
  group->watch->queued(*group->watched, work->parts.front());
  // A failure that the watch has seen by then is thrown by wait().
  work->then = [group] {
    if (!group->failure) group->failure = group->watch->failure();
    if (group->failure) throw *group->failure;
  };
  return work;
}

}  // namespace

std::shared_ptr<Work::Impl> device_all_reduce(const std::shared_ptr<Group::Impl>& group,
                                              at::Tensor& tensor, ReduceOp op) {
  std::vector<at::Tensor> tensors{flat_view(*group, "all_reduce", tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  options.timeout = group->timeout;
  return queue(group, "all_reduce", tensor,
               [&](c10d::Backend& b) { return b.allreduce(tensors, options); });
}

std::shared_ptr<Work::Impl> device_broadcast(const std::shared_ptr<Group::Impl>& group,
                                             at::Tensor& tensor, int root) {
  std::vector<at::Tensor> tensors{byte_view(*group, "broadcast", tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = group->timeout;
  return queue(group, "broadcast", tensor,
               [&](c10d::Backend& b) { return b.broadcast(tensors, options); });
}

std::shared_ptr<Work::Impl> device_all_gather(const std::shared_ptr<Group::Impl>& group,
                                              at::Tensor& out, const at::Tensor& in) {
  at::Tensor to = byte_view(*group, "all_gather", out);
  at::Tensor from = byte_view(*group, "all_gather", in);
  c10d::AllgatherOptions options;
  options.timeout = group->timeout;
  return queue(group, "all_gather", in,
               [&](c10d::Backend& b) { return b._allgather_base(to, from, options); });
}

std::shared_ptr<Work::Impl> device_reduce_scatter(const std::shared_ptr<Group::Impl>& group,
                                                  at::Tensor& out, const at::Tensor& in) {
  at::Tensor to = flat_view(*group, "reduce_scatter", out);
  at::Tensor from = flat_view(*group, "reduce_scatter", in);
  c10d::ReduceScatterOptions options;
  options.timeout = group->timeout;
  return queue(group, "reduce_scatter", in,
               [&](c10d::Backend& b) { return b._reduce_scatter_base(to, from, options); });
}

}  // namespace retort::parallel::detail
