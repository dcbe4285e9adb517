// What a group does, in three kinds. Collectives of tensors on the CPU are c10d's.
//
// Messages between two ranks, and the exchanges that are made of them, are this file's. An exchange
// goes in rounds d = 1 .. size - 1: in round d a rank sends to the one that stands d places behind
// it and receives from the one d places before it, so that no rank is flooded. All receives are
// posted before the first send.
//
// Collectives of tensors on a device are NCCL's where the group has it (device_collectives.h). The
// rest goes through host memory, by the operations of the CPU: collectives of groups that nobody
// connected on devices, and where ranks share a device, which NCCL refuses; and messages between
// two ranks, because NCCL's take no tags and hang unless both sides post them in one order.
#include "parallel/group.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "base/sizes.h"
#include "parallel/detail/device_collectives.h"
#include "parallel/detail/work.h"

namespace retort::parallel {
namespace {

using detail::byte_view;
using detail::check_position;
using detail::flat_view;
using detail::launch;
using detail::throw_invalid;

// The tags of exchanges lie above those of the callers' messages.
constexpr int kFirstExchangeTag = Group::kMaxMessageTags;
static_assert(2 * kFirstExchangeTag == detail::Mesh::kMaxTags);

// All ranks make the same calls in the same order, so their counts agree. The count wraps, because
// only exchanges that are in flight together need different tags.
int next_exchange_tag(Group::Impl& group) {
  return kFirstExchangeTag | to_int(group.num_exchanges++ & (kFirstExchangeTag - 1));
}

void post_send(Work::Impl& work, at::Tensor bytes, int to, int tag) {
  std::vector<at::Tensor> tensors{std::move(bytes)};
  const int own = detail::Mesh::message_tag(work.group->place_in_mesh, tag);
  detail::start_part(work, [&](c10d::Backend& b) { return b.send(tensors, to, own); });
}

void post_recv(Work::Impl& work, at::Tensor bytes, int from, int tag) {
  std::vector<at::Tensor> tensors{std::move(bytes)};
  const int own = detail::Mesh::message_tag(work.group->place_in_mesh, tag);
  detail::start_part(work, [&](c10d::Backend& b) { return b.recv(tensors, from, own); });
}

void check_message(const Group::Impl& group, const char* operation, int position, int tag) {
  detail::check_position(group, operation, position);
  if (position == group.position)
    throw_invalid(group, operation, "a rank cannot exchange a message with itself");
  if (tag < 0 || tag >= kFirstExchangeTag)
    throw_invalid(group, operation, "tag " + std::to_string(tag) + " is outside of [0, 2^27)");
}

void check_parts(const Group::Impl& group, const char* operation, const at::Tensor& whole,
                 const at::Tensor& part) {
  const int64_t ranks = std::ssize(group.ranks);
  if (whole.numel() != ranks * part.numel() || whole.scalar_type() != part.scalar_type())
    throw_invalid(group, operation,
                  "the whole has " + std::to_string(whole.numel()) + " elements and a part " +
                      std::to_string(part.numel()) + ", expected one part for each of the " +
                      std::to_string(ranks) + " ranks, all of one dtype");
}

// out[i] = parts[0][i] + parts[1][i] + ... in this order. `out` may be one of the parts: a block is
// summed beside it and copied at the end.
void sum_in_order(const std::vector<const float*>& parts, float* out, int64_t count) {
  constexpr int64_t kBlock = 1024;
  float sum[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start);
    std::copy_n(parts[0] + start, n, sum);
    for (size_t r = 1; r < parts.size(); ++r) {
      const float* part = parts[r] + start;
      for (int64_t i = 0; i < n; ++i)
        sum[i] += part[i];
    }
    std::copy_n(sum, n, out + start);
  }
}

at::Tensor host_memory_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

// wait() copies the result back to the device, after what the operation has left to do on the host.
void copy_back(Work::Impl& work, const at::Tensor& host, const at::Tensor& tensor) {
  work.then = [first = std::move(work.then), host, tensor] {
    if (first) first();
    tensor.copy_(host);
  };
}

}  // namespace

void Work::wait() {
  if (impl_) impl_->finish();
}

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& Group::name() const { return impl_->name; }
int Group::rank() const { return impl_->position; }
int Group::size() const { return static_cast<int>(impl_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return impl_->ranks; }
bool Group::has_device_backend() const { return impl_->device_backend != nullptr; }

Work Group::all_reduce_async(at::Tensor& tensor, ReduceOp op) {
  if (size() == 1 || tensor.numel() == 0) return {};
  // NCCL reduces where the tensor lies. Without it the result is formed in a copy in host memory,
  // which wait() copies back.
  if (!tensor.is_cpu()) {
    if (impl_->device_backend) return Work(detail::device_all_reduce(impl_, tensor, op));
    at::Tensor host = tensor.detach().cpu().contiguous();
    Work result = all_reduce_async(host, op);
    copy_back(*result.impl_, host, tensor.detach());
    return result;
  }

  std::vector<at::Tensor> tensors{flat_view(*impl_, "all_reduce", tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = detail::to_c10d(op);
  options.timeout = impl_->timeout;
  return Work(launch(impl_, "all_reduce", &tensor,
                     [&](c10d::Backend& b) { return b.allreduce(tensors, options); }));
}

void Group::all_reduce(at::Tensor& tensor, ReduceOp op) { all_reduce_async(tensor, op).wait(); }

void Group::broadcast(at::Tensor& tensor, int root) {
  check_position(*impl_, "broadcast", root);
  if (size() == 1 || tensor.numel() == 0) return;
  if (!tensor.is_cpu()) {
    if (impl_->device_backend) return detail::device_broadcast(impl_, tensor, root)->finish();
    // Only the root has values that are worth a copy; the others need memory to receive into.
    at::Tensor host =
        rank() == root ? tensor.detach().cpu().contiguous() : host_memory_like(tensor);
    broadcast(host, root);
    tensor.detach().copy_(host);
    return;
  }

  // The tensor travels as bytes, so that its dtype does not matter to Gloo.
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
  // Even a group of one returns a copy: the result never shares memory with the input.
  if (size() == 1) return input.unsqueeze(0).clone();
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  at::Tensor result = at::empty(sizes, input.options());
  if (tensor.numel() == 0) return result;
  if (!tensor.is_cpu()) {
    all_gather_into(result, input);
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

Work Group::send_async(const at::Tensor& tensor, int to, int tag) {
  check_message(*impl_, "send", to, tag);
  if (tensor.numel() == 0) return {};
  // A message goes through host memory even where NCCL connects the group, as the head of this file
  // says.
  const at::Tensor bytes = byte_view(*impl_, "send", tensor.cpu().contiguous());
  Work result;
  result.impl_ = detail::new_work(impl_, "send", &tensor);
  result.impl_->limit = impl_->timeout;  // a message has no other time limit
  post_send(*result.impl_, bytes, to, tag);
  return result;
}

Work Group::recv_async(at::Tensor& tensor, int from, int tag) {
  check_message(*impl_, "recv", from, tag);
  if (tensor.numel() == 0) return {};
  // A message for the device arrives in host memory, from where wait() copies it.
  if (!tensor.is_cpu()) {
    at::Tensor host = host_memory_like(tensor);
    Work result = recv_async(host, from, tag);
    copy_back(*result.impl_, host, tensor.detach());
    return result;
  }

  const at::Tensor bytes = byte_view(*impl_, "recv", tensor);
  Work result;
  result.impl_ = detail::new_work(impl_, "recv", &tensor);
  result.impl_->limit = impl_->timeout;
  post_recv(*result.impl_, bytes, from, tag);
  return result;
}

void Group::send(const at::Tensor& tensor, int to, int tag) { send_async(tensor, to, tag).wait(); }
void Group::recv(at::Tensor& tensor, int from, int tag) { recv_async(tensor, from, tag).wait(); }

Work Group::all_gather_into_async(at::Tensor& out, const at::Tensor& in) {
  check_parts(*impl_, "all_gather_into", out, in);
  if (in.numel() == 0) return {};
  if (!in.is_cpu() && size() > 1) {
    if (impl_->device_backend) return Work(detail::device_all_gather(impl_, out, in));
    at::Tensor host = host_memory_like(out);
    Work result = all_gather_into_async(host, in.detach().cpu().contiguous());
    copy_back(*result.impl_, host, out.detach());
    return result;
  }

  // This rank's part is copied to its place, unless the caller passed the place itself.
  const at::Tensor to = byte_view(*impl_, "all_gather_into", out);
  const at::Tensor from = byte_view(*impl_, "all_gather_into", in);
  const int64_t k = from.numel();
  at::Tensor own = to.narrow(0, rank() * k, k);
  if (own.const_data_ptr() != from.const_data_ptr()) own.copy_(from);
  if (size() == 1) return {};

  // The other parts arrive straight at their places. All receives are posted before the first send,
  // so that every part finds its place ready.
  Work result;
  result.impl_ = detail::new_work(impl_, "all_gather_into", &in);
  result.impl_->limit = impl_->timeout;
  const int tag = next_exchange_tag(*impl_);
  for (int d = 1; d < size(); ++d) {
    const int other = (rank() + size() - d) % size();
    post_recv(*result.impl_, to.narrow(0, other * k, k), other, tag);
  }
  for (int d = 1; d < size(); ++d)
    post_send(*result.impl_, own, (rank() + d) % size(), tag);
  return result;
}

Work Group::reduce_scatter_async(at::Tensor& out, const at::Tensor& in) {
  check_parts(*impl_, "reduce_scatter", in, out);
  const bool on_device = !in.is_cpu() && impl_->device_backend;
  if (!on_device && in.scalar_type() != at::kFloat)
    throw_invalid(*impl_, "reduce_scatter", "expected float32");
  if (out.numel() == 0) return {};
  if (!in.is_cpu() && size() > 1) {
    if (impl_->device_backend) return Work(detail::device_reduce_scatter(impl_, out, in));
    at::Tensor host = host_memory_like(out);
    Work result = reduce_scatter_async(host, in.detach().cpu().contiguous());
    copy_back(*result.impl_, host, out.detach());
    return result;
  }

  at::Tensor to = flat_view(*impl_, "reduce_scatter", out);
  const at::Tensor from = flat_view(*impl_, "reduce_scatter", in);
  const int64_t k = to.numel();
  if (size() == 1) {
    if (to.const_data_ptr() != from.const_data_ptr()) to.copy_(from);
    return {};
  }

  // parts[r] is where rank r's summand of this rank's part lies: its own in place, the others' in
  // rows of `received`.
  Work result;
  result.impl_ = detail::new_work(impl_, "reduce_scatter", &in);
  result.impl_->limit = impl_->timeout;
  const int tag = next_exchange_tag(*impl_);
  const at::Tensor received = at::empty({size() - 1, k}, to.options());
  std::vector<const float*> parts(to_size(size()));
  parts[to_size(rank())] = from.const_data_ptr<float>() + rank() * k;
  for (int d = 1; d < size(); ++d) {
    const int other = (rank() + size() - d) % size();
    const at::Tensor row = received.select(0, d - 1);
    parts[to_size(other)] = row.const_data_ptr<float>();
    post_recv(*result.impl_, byte_view(*impl_, "reduce_scatter", row), other, tag);
  }

  // Every other rank is sent its part of this rank's tensor, straight from where it lies.
  for (int d = 1; d < size(); ++d) {
    const int other = (rank() + d) % size();
    post_send(*result.impl_, byte_view(*impl_, "reduce_scatter", from.narrow(0, other * k, k)),
              other, tag);
  }

  // wait() forms the sum, in rank order, so that it has the same bits in every run. The lambda
  // holds the tensors that the raw pointers lead into.
  result.impl_->then = [parts, received, from, to] {
    sum_in_order(parts, to.mutable_data_ptr<float>(), to.numel());
  };
  return result;
}

void Group::all_gather_into(at::Tensor& out, const at::Tensor& in) {
  all_gather_into_async(out, in).wait();
}
void Group::reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  reduce_scatter_async(out, in).wait();
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
  // The receivers do not know the length, so it goes first, in a broadcast of its own.
  at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  broadcast(length, root);
  at::Tensor content = at::empty({*length.const_data_ptr<int64_t>()}, at::kByte);
  if (rank() == root) std::copy(bytes.begin(), bytes.end(), content.mutable_data_ptr<uint8_t>());
  broadcast(content, root);
  const uint8_t* data = content.const_data_ptr<uint8_t>();
  return {data, data + content.numel()};
}

std::vector<std::string> Group::all_gather(const std::string& bytes) {
  if (size() == 1) return {bytes};
  const at::Tensor lengths =
      all_gather(at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong));
  const int64_t* length = lengths.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(length, length + size());

  // Parts of a gather are equally long. What stands behind a shorter text is zeros, so that no
  // memory of this process leaves it.
  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), padded.mutable_data_ptr<uint8_t>());
  const at::Tensor all = all_gather(padded);
  const uint8_t* data = all.const_data_ptr<uint8_t>();
  std::vector<std::string> texts;
  for (int member = 0; member < size(); ++member, data += longest)
    texts.emplace_back(data, data + length[member]);
  return texts;
}

}  // namespace retort::parallel
