#include "parallel/group.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "parallel/detail/work.h"

namespace retort::parallel {

using detail::byte_view;
using detail::check_position;
using detail::flat_view;
using detail::launch;

void Work::wait() {
  if (impl_) impl_->finish();
}

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& Group::name() const { return impl_->name; }
int Group::rank() const { return impl_->position; }
int Group::size() const { return static_cast<int>(impl_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return impl_->ranks; }

Work Group::all_reduce_async(at::Tensor& tensor, ReduceOp op) {
  if (size() == 1 || tensor.numel() == 0) return {};
  if (!tensor.is_cpu()) return device_all_reduce(tensor, op);
  std::vector<at::Tensor> tensors{flat_view(*impl_, "all_reduce", tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = detail::to_c10d(op);
  options.timeout = impl_->timeout;
  Work result;
  result.impl_ = launch(impl_, "all_reduce", &tensor,
                        [&](c10d::Backend& b) { return b.allreduce(tensors, options); });
  return result;
}

void Group::all_reduce(at::Tensor& tensor, ReduceOp op) { all_reduce_async(tensor, op).wait(); }

void Group::broadcast(at::Tensor& tensor, int root) {
  check_position(*impl_, "broadcast", root);
  if (size() == 1 || tensor.numel() == 0) return;
  if (!tensor.is_cpu()) return device_broadcast(tensor, root);
  std::vector<at::Tensor> tensors{byte_view(*impl_, "broadcast", tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = impl_->timeout;
  launch(impl_, "broadcast", &tensor, [&](c10d::Backend& b) {
    return b.broadcast(tensors, options);
  })->finish();
}

at::Tensor Group::all_gather(const at::Tensor& tensor) {
  const at::Tensor input = tensor.detach().contiguous();
  if (size() == 1) return input.unsqueeze(0).clone();
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  at::Tensor result = at::empty(sizes, input.options());
  if (tensor.numel() == 0) return result;
  if (!tensor.is_cpu()) {
    device_all_gather(result, input).wait();
    return result;
  }
  at::Tensor from = byte_view(*impl_, "all_gather", input);
  at::Tensor to = byte_view(*impl_, "all_gather", result);
  c10d::AllgatherOptions options;
  options.timeout = impl_->timeout;
  launch(impl_, "all_gather", &tensor, [&](c10d::Backend& b) {
    return b._allgather_base(to, from, options);
  })->finish();
  return result;
}

void Group::barrier() {
  if (size() == 1) return;
  c10d::BarrierOptions options;
  options.timeout = impl_->timeout;
  launch(impl_, "barrier", nullptr, [&](c10d::Backend& b) { return b.barrier(options); })->finish();
}

// Host values travel in tensors of their own: after a failure Gloo may still hold the memory.
int64_t Group::all_reduce(int64_t value, ReduceOp op) {
  at::Tensor tensor = at::full({1}, value, at::kLong);
  all_reduce(tensor, op);
  return *tensor.const_data_ptr<int64_t>();
}

double Group::all_reduce(double value, ReduceOp op) {
  at::Tensor tensor = at::full({1}, value, at::kDouble);
  all_reduce(tensor, op);
  return *tensor.const_data_ptr<double>();
}

std::string Group::broadcast(const std::string& bytes, int root) {
  check_position(*impl_, "broadcast", root);
  if (size() == 1) return bytes;
  at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  broadcast(length, root);
  at::Tensor content = at::empty({*length.const_data_ptr<int64_t>()}, at::kByte);
  if (rank() == root) std::copy(bytes.begin(), bytes.end(), content.mutable_data_ptr<uint8_t>());
  broadcast(content, root);
  const uint8_t* data = content.const_data_ptr<uint8_t>();
  return {data, data + content.numel()};
}

}  // namespace retort::parallel
