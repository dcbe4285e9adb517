#include "parallel/detail/work.h"

#include <sstream>

#include <c10/core/ScalarType.h>

#include "base/sizes.h"
#include "parallel/detail/device_watch.h"

namespace retort::parallel {

Error Work::Impl::fail(const std::exception& e) {
  const std::string why = detail::first_line(e);
  error = Error(detail::says_timeout(why) ? ErrorCode::kTimeout : ErrorCode::kCollective,
                std::string("a collective failed: ") + why +
                    "; the group is unusable, another rank may tell why")
              .with("group", group->name)
              .with("rank", group->ranks[to_size(group->position)])
              .with("op", operation)
              .with("sequence", sequence)
              .with("shape", shape);
  // After a failure nobody knows what is left in the connections, so this group refuses further
  // operations, and so does every other of its mesh.
  if (!group->failure) group->failure = error;
  if (group->mesh && !group->mesh->failure) group->mesh->failure = error;
  return *error;
}

void Work::Impl::finish() {
  if (error) throw *error;
  if (done) return;
  done = true;
  try {
    for (const auto& part : parts)
      if (!part->wait(limit)) throw std::runtime_error("aborted");
  } catch (const std::exception& e) {
    throw fail(e);
  }
  parts.clear();
  if (then) then();
  then = nullptr;
}

namespace detail {

void throw_invalid(const Group::Impl& group, const char* operation, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what).with("group", group.name).with("op", operation);
}

at::Tensor flat_view(const Group::Impl& group, const char* operation, const at::Tensor& tensor) {
  // A rank by itself copies, on whatever device it is, and has no backend.
  const auto on_device = [&] {
    return group.ranks.size() == 1 ||
           (group.device_backend && tensor.device() == group.device_backend->getBoundDeviceId());
  };
  if (!tensor.defined() || !(tensor.is_cpu() || on_device()) || !tensor.is_contiguous())
    throw_invalid(group, operation,
                  "expected a contiguous tensor on the CPU or the world's device");
  return tensor.detach().view({tensor.numel()});
}

at::Tensor byte_view(const Group::Impl& group, const char* operation, const at::Tensor& tensor) {
  return flat_view(group, operation, tensor).view(at::kByte);
}

void check_position(const Group::Impl& group, const char* operation, int position) {
  if (position < 0 || position >= std::ssize(group.ranks))
    throw_invalid(group, operation,
                  "position " + std::to_string(position) + " is outside of a group of " +
                      std::to_string(group.ranks.size()) + " ranks");
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

std::shared_ptr<Work::Impl> new_work(const std::shared_ptr<Group::Impl>& group,
                                     const char* operation, const at::Tensor* tensor) {
  // The failure may have been met elsewhere: on the device, or by another group of the same mesh.
  if (!group->failure && group->watch) group->failure = group->watch->failure();
  if (!group->failure && group->mesh) group->failure = group->mesh->failure;
  if (group->failure)
    throw Error(ErrorCode::kCollective,
                std::string("the group failed before: ") + group->failure->what())
        .with("group", group->name)
        .with("op", operation);

  auto work = std::make_shared<Work::Impl>();
  work->group = group;
  work->operation = operation;
  work->sequence = ++group->sequence;
  // Gloo's own timeout runs from the start of a collective and comes first; the margin bounds the
  // wait in any case.
  work->limit = group->timeout + std::chrono::seconds(2);
  if (tensor != nullptr) {
    std::ostringstream text;
    text << c10::toString(tensor->scalar_type()) << tensor->sizes();
    work->shape = text.str();
  }
  return work;
}

}  // namespace detail
}  // namespace retort::parallel
