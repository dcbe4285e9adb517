// The operations of a group on tensors that are on a device.
//
// Collectives are NCCL's where the group has them. The rest goes through host memory, by the
// operations of the CPU: collectives where ranks share a device, which NCCL refuses, and messages
// between two ranks, because NCCL's take no tags and hang unless both sides post them in one order.
#include <functional>
#include <utility>

#include <ATen/ops/empty.h>

#include "parallel/detail/device_watch.h"
#include "parallel/detail/work.h"

namespace retort::parallel {
namespace {

using detail::byte_view;
using detail::flat_view;

// Queues one collective of NCCL and tells the group's watch of it.
template <class F>
std::shared_ptr<Work::Impl> queue(const std::shared_ptr<Group::Impl>& group, const char* operation,
                                  const at::Tensor& tensor, F&& start) {
  auto work = detail::new_work(group, operation, &tensor);
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
  work->then = [group] {
    if (!group->failure) group->failure = group->watch->failure();
    if (group->failure) throw *group->failure;
  };
  return work;
}

at::Tensor host_memory_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

// Adds to what the operation still has to do on the host: its result goes back to the device.
void copy_back(Work::Impl& work, const at::Tensor& host, const at::Tensor& tensor) {
  work.then = [first = std::move(work.then), host, tensor] {
    if (first) first();
    tensor.copy_(host);
  };
}

}  // namespace

Work Group::device_all_reduce(at::Tensor& tensor, ReduceOp op) {
  Work result;
  if (impl_->device_backend) {
    std::vector<at::Tensor> tensors{flat_view(*impl_, "all_reduce", tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = detail::to_c10d(op);
    options.timeout = impl_->timeout;
    result.impl_ = queue(impl_, "all_reduce", tensor,
                         [&](c10d::Backend& b) { return b.allreduce(tensors, options); });
    return result;
  }
  at::Tensor host = tensor.detach().cpu().contiguous();
  result = all_reduce_async(host, op);
  copy_back(*result.impl_, host, tensor.detach());
  return result;
}

void Group::device_broadcast(at::Tensor& tensor, int root) {
  if (impl_->device_backend) {
    std::vector<at::Tensor> tensors{byte_view(*impl_, "broadcast", tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = impl_->timeout;
    return queue(impl_, "broadcast", tensor,
                 [&](c10d::Backend& b) { return b.broadcast(tensors, options); })
        ->finish();
  }
  at::Tensor host = rank() == root ? tensor.detach().cpu().contiguous() : host_memory_like(tensor);
  broadcast(host, root);
  tensor.detach().copy_(host);
}

Work Group::device_all_gather(at::Tensor& out, const at::Tensor& in) {
  Work result;
  if (impl_->device_backend) {
    at::Tensor to = byte_view(*impl_, "all_gather", out);
    at::Tensor from = byte_view(*impl_, "all_gather", in);
    c10d::AllgatherOptions options;
    options.timeout = impl_->timeout;
    result.impl_ = queue(impl_, "all_gather", in,
                         [&](c10d::Backend& b) { return b._allgather_base(to, from, options); });
    return result;
  }
  at::Tensor host = host_memory_like(out);
  result = all_gather_into_async(host, in.detach().cpu().contiguous());
  copy_back(*result.impl_, host, out.detach());
  return result;
}

Work Group::device_reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  Work result;
  if (impl_->device_backend) {
    at::Tensor to = flat_view(*impl_, "reduce_scatter", out);
    at::Tensor from = flat_view(*impl_, "reduce_scatter", in);
    c10d::ReduceScatterOptions options;
    options.timeout = impl_->timeout;
    result.impl_ = queue(impl_, "reduce_scatter", in, [&](c10d::Backend& b) {
      return b._reduce_scatter_base(to, from, options);
    });
    return result;
  }
  at::Tensor host = host_memory_like(out);
  result = reduce_scatter_async(host, in.detach().cpu().contiguous());
  copy_back(*result.impl_, host, out.detach());
  return result;
}

Work Group::device_recv(at::Tensor& tensor, int from, int tag) {
  at::Tensor host = host_memory_like(tensor);
  Work result = recv_async(host, from, tag);
  copy_back(*result.impl_, host, tensor.detach());
  return result;
}

}  // namespace retort::parallel
