// One operation of a group: its number, the c10d works that are in flight for it, and the error
// that names it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "parallel/detail/c10d_impl.h"
#include "parallel/detail/mesh.h"
#include "parallel/group.h"

namespace retort::parallel {

struct Work::Impl {
  std::shared_ptr<Group::Impl> group;
  const char* operation = "";
  uint64_t sequence = 0;
  std::string shape;
  std::vector<c10::intrusive_ptr<c10d::Work>> parts;
  std::chrono::milliseconds limit{0};  // of the wait for each part
  std::function<void()> then;          // what this rank still does when all parts are complete
  bool done = false;
  std::optional<Error> error;

  // Makes the group unusable with this failure and returns the error that names the operation.
  Error fail(const std::exception& e);
  void finish();
};

namespace detail {

[[noreturn]] void throw_invalid(const Group::Impl& group, const char* operation,
                                const std::string& what);
// The elements of `tensor` as one dimension of the same memory, outside of autograd.
at::Tensor flat_view(const Group::Impl& group, const char* operation, const at::Tensor& tensor);
// The bytes of `tensor`, likewise. Operations that only move data take them, so that c10d need not
// support the dtype.
at::Tensor byte_view(const Group::Impl& group, const char* operation, const at::Tensor& tensor);
void check_position(const Group::Impl& group, const char* operation, int position);
c10d::ReduceOp to_c10d(ReduceOp op);
// Numbers a new operation; kCollective if the group failed before. `tensor` (or null) is what
// errors show the shape of.
std::shared_ptr<Work::Impl> new_work(const std::shared_ptr<Group::Impl>& group,
                                     const char* operation, const at::Tensor* tensor);
// Starts one c10d work of the operation. What `start` throws becomes the group's error.
template <class F>
void start_part(Work::Impl& work, F&& start) {
  try {
    work.parts.push_back(work.group->mesh->start(work.group->place_in_mesh, start));
  } catch (const std::exception& e) {
    throw work.fail(e);
  }
}
// A new operation of one part, started.
template <class F>
std::shared_ptr<Work::Impl> launch(const std::shared_ptr<Group::Impl>& group, const char* operation,
                                   const at::Tensor* tensor, F&& start) {
  auto work = new_work(group, operation, tensor);
  start_part(*work, start);
  return work;
}

}  // namespace detail
}  // namespace retort::parallel
