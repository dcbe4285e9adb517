// The operations of a group that are made of messages between two ranks: send and receive, and the
// exchanges in which every rank sends a message to every other.
//
// An exchange goes in rounds d = 1 .. size - 1: in round d a rank sends to the one that stands d
// places behind it and receives from the one d places before it, so that no rank is flooded. All
// receives are posted before the first send.
#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/sizes.h"
#include "parallel/detail/work.h"

namespace retort::parallel {
namespace {

using detail::byte_view;
using detail::flat_view;
using detail::throw_invalid;

// The tags of exchanges lie above those of the callers' messages.
constexpr int kFirstExchangeTag = Group::kMaxMessageTags;
static_assert(2 * kFirstExchangeTag == detail::Mesh::kMaxTags);

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

}  // namespace

Work Group::send_async(const at::Tensor& tensor, int to, int tag) {
  check_message(*impl_, "send", to, tag);
  if (tensor.numel() == 0) return {};
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
  if (!tensor.is_cpu()) return device_recv(tensor, from, tag);
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
  if (!in.is_cpu() && size() > 1) return device_all_gather(out, in);

  // This rank's part goes to its place.
  const at::Tensor to = byte_view(*impl_, "all_gather_into", out);
  const at::Tensor from = byte_view(*impl_, "all_gather_into", in);
  const int64_t k = from.numel();
  at::Tensor own = to.narrow(0, rank() * k, k);
  if (own.const_data_ptr() != from.const_data_ptr()) own.copy_(from);
  if (size() == 1) return {};

  // The others arrive at theirs.
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
  if (in.scalar_type() != at::kFloat) throw_invalid(*impl_, "reduce_scatter", "expected float32");
  if (out.numel() == 0) return {};
  if (!in.is_cpu() && size() > 1) return device_reduce_scatter(out, in);

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

  // Every other rank gets its part of this rank's tensor.
  for (int d = 1; d < size(); ++d) {
    const int other = (rank() + d) % size();
    post_send(*result.impl_, byte_view(*impl_, "reduce_scatter", from.narrow(0, other * k, k)),
              other, tag);
  }

  // wait() forms the sum, in rank order. It owns the tensors that the pointers lead into.
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

}  // namespace retort::parallel
