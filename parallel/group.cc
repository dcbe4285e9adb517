#include "parallel/group.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "parallel/detail/c10d_impl.h"

namespace retort::parallel {

// One operation as its error names it, and what is in flight.
struct Work::Impl {
  std::shared_ptr<Group::Impl> group;
  const char* operation = "";
  uint64_t sequence = 0;
  std::string shape;
  c10::intrusive_ptr<c10d::Work> work;
  std::chrono::milliseconds limit{0};  // of wait()
  bool done = false;
  std::optional<Error> error;

  Error fail(const std::exception& e) {
    const std::string why = detail::first_line(e);
    error = Error(detail::says_timeout(why) ? ErrorCode::kTimeout : ErrorCode::kCollective,
                  std::string("a collective failed: ") + why + "; the group is unusable, another rank may tell why")
                .with("group", group->name)
                .with("rank", group->ranks[static_cast<size_t>(group->position)])
                .with("op", operation)
                .with("sequence", sequence)
                .with("shape", shape);
    if (!group->failure) group->failure = error;
    return *error;
  }
};

namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

[[noreturn]] void throw_invalid(const Group::Impl& group, const char* operation, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what).with("group", group.name).with("op", operation);
}

// The elements of `tensor` as one dimension of the same memory, outside of autograd.
at::Tensor flat_view(const Group::Impl& group, const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.is_contiguous())
    throw_invalid(group, operation, "expected a contiguous tensor on the CPU");
  return tensor.detach().view({tensor.numel()});
}

// The bytes of `tensor`: what is only moved needs no support for its dtype.
at::Tensor byte_view(const Group::Impl& group, const char* operation, const at::Tensor& tensor) {
  return flat_view(group, operation, tensor).view(at::kByte);
}

void check_position(const Group::Impl& group, const char* operation, int position) {
  if (position < 0 || position >= static_cast<int>(group.ranks.size()))
    throw_invalid(
        group, operation,
        "position " + std::to_string(position) + " is outside of a group of " + std::to_string(group.ranks.size()) + " ranks");
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
  }
  RETORT_CHECK(false) << "unknown ReduceOp";
  return c10d::ReduceOp::UNUSED;
}

// Starts one operation: numbers it, and turns what it throws into the group's error.
template <class F>
std::shared_ptr<Work::Impl> launch(const std::shared_ptr<Group::Impl>& group, const char* operation, const at::Tensor* tensor,
                                   F&& start) {
  if (group->failure)
    throw Error(ErrorCode::kCollective, std::string("the group failed before: ") + group->failure->what())
        .with("group", group->name)
        .with("op", operation);
  auto impl = std::make_shared<Work::Impl>();
  impl->group = group;
  impl->operation = operation;
  impl->sequence = ++group->sequence;
  // Gloo's own timeout runs from the start of a collective and comes first; the margin bounds the wait in any case.
  impl->limit = group->timeout + std::chrono::seconds(2);
  if (tensor != nullptr) impl->shape = shape_of(*tensor);
  try {
    impl->work = start(*group->backend);
  } catch (const std::exception& e) {
    throw impl->fail(e);
  }
  return impl;
}

void finish(Work::Impl& impl) {
  if (impl.error) throw *impl.error;
  if (impl.done) return;
  impl.done = true;
  try {
    if (!impl.work->wait(impl.limit)) throw std::runtime_error("aborted");
  } catch (const std::exception& e) {
    throw impl.fail(e);
  }
  impl.work.reset();
}

}  // namespace

void Work::wait() {
  if (impl_) finish(*impl_);
}

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& Group::name() const { return impl_->name; }
int Group::rank() const { return impl_->position; }
int Group::size() const { return static_cast<int>(impl_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return impl_->ranks; }

Work Group::all_reduce_async(at::Tensor& tensor, ReduceOp op) {
  if (size() == 1 || tensor.numel() == 0) return {};
  std::vector<at::Tensor> tensors{flat_view(*impl_, "all_reduce", tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  options.timeout = impl_->timeout;
  Work result;
  result.impl_ = launch(impl_, "all_reduce", &tensor, [&](c10d::Backend& b) { return b.allreduce(tensors, options); });
  return result;
}

void Group::all_reduce(at::Tensor& tensor, ReduceOp op) { all_reduce_async(tensor, op).wait(); }

void Group::broadcast(at::Tensor& tensor, int root) {
  check_position(*impl_, "broadcast", root);
  if (size() == 1 || tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(*impl_, "broadcast", tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = impl_->timeout;
  finish(*launch(impl_, "broadcast", &tensor, [&](c10d::Backend& b) { return b.broadcast(tensors, options); }));
}

at::Tensor Group::all_gather(const at::Tensor& tensor) {
  const at::Tensor input = tensor.detach().contiguous();
  if (size() == 1) return input.unsqueeze(0).clone();
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  at::Tensor result = at::empty(sizes, input.options());
  if (tensor.numel() == 0) return result;
  at::Tensor from = byte_view(*impl_, "all_gather", input);
  at::Tensor to = byte_view(*impl_, "all_gather", result);
  c10d::AllgatherOptions options;
  options.timeout = impl_->timeout;
  finish(*launch(impl_, "all_gather", &tensor, [&](c10d::Backend& b) { return b._allgather_base(to, from, options); }));
  return result;
}

void Group::send(const at::Tensor& tensor, int to, int tag) {
  check_position(*impl_, "send", to);
  if (to == rank()) throw_invalid(*impl_, "send", "a rank cannot send to itself");
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(*impl_, "send", tensor.contiguous())};
  const auto work = launch(impl_, "send", &tensor, [&](c10d::Backend& b) { return b.send(tensors, to, tag); });
  work->limit = impl_->timeout;  // a message has no other
  finish(*work);
}

void Group::recv(at::Tensor& tensor, int from, int tag) {
  check_position(*impl_, "recv", from);
  if (from == rank()) throw_invalid(*impl_, "recv", "a rank cannot receive from itself");
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(*impl_, "recv", tensor)};
  const auto work = launch(impl_, "recv", &tensor, [&](c10d::Backend& b) { return b.recv(tensors, from, tag); });
  work->limit = impl_->timeout;  // a message has no other
  finish(*work);
}

void Group::barrier() {
  if (size() == 1) return;
  c10d::BarrierOptions options;
  options.timeout = impl_->timeout;
  finish(*launch(impl_, "barrier", nullptr, [&](c10d::Backend& b) { return b.barrier(options); }));
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

namespace {

// The position of the lowest rank that is not ready, or the size of the group. One collective.
int first_failing(Group& group, bool ready) {
  return static_cast<int>(group.all_reduce(int64_t{ready ? group.size() : group.rank()}, ReduceOp::kMin));
}

}  // namespace

void agree_or_throw(Group& group, const std::string& my_error) {
  const int failing = first_failing(group, my_error.empty());
  if (failing == group.size()) return;
  throw Error(ErrorCode::kRemote, group.broadcast(my_error, failing))
      .with("group", group.name())
      .with("failed_rank", group.ranks()[static_cast<size_t>(failing)]);
}

void agree_or_throw(Group& group, const Error* my_error) {
  const int failing = first_failing(group, my_error == nullptr);
  if (failing == group.size()) return;
  at::Tensor code = at::full({1}, my_error != nullptr ? static_cast<int64_t>(my_error->code()) : 0, at::kLong);
  group.broadcast(code, failing);
  throw Error(static_cast<ErrorCode>(*code.const_data_ptr<int64_t>()),
              group.broadcast(my_error != nullptr ? std::string(my_error->what()) : "", failing))
      .with("group", group.name())
      .with("failed_rank", group.ranks()[static_cast<size_t>(failing)]);
}

}  // namespace retort::parallel
