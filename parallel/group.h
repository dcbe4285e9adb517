// A set of ranks of one role that run collectives together: a thin wrapper over a c10d process
// group (Gloo on the CPU).
//
// Threads: the compute thread only, in program order; every member must make the same calls in
// the same order, over all groups that have its ranks. Groups of equal ranks share their
// connections (parallel/detail/mesh.h). Errors: kTimeout at the group's timeout, kCollective for
// anything else, both naming group, rank, operation, sequence number and shape. After an error
// the group is unusable, and so is every other of the same ranks. A group of one rank does
// nothing and costs nothing. Shapes and dtypes must agree between the ranks: Gloo may end a
// process that receives more than it expects. Tensors on a device (world.device: cuda): a
// collective is queued behind what the current stream has queued, and wait() makes that stream
// wait for it, not the thread; it is NCCL's, so sums are not in rank order. A failure or timeout
// on the device is thrown by the next call or wait() on any group of the world. Through host memory
// go messages between two ranks, collectives of groups that carry no tensors of devices
// (World::Options::device_groups), and all of it where ranks share a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace retort::parallel {

enum class ReduceOp { kSum, kMax, kMin };

// An asynchronous operation in flight. wait() is idempotent and rethrows as above; until it
// returned the caller must neither read nor write the tensors of the call. What is left of the
// operation to do on this rank (the sum of a reduce_scatter) wait() does. An empty Work (one rank,
// no elements) is done.
class Work {
 public:
  Work() = default;
  void wait();
  struct Impl;

 private:
  friend class Group;
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<Impl> impl_;
};

class Group {
 public:
  struct Impl;
  explicit Group(std::shared_ptr<Impl> impl);
  static constexpr int kMaxMessageTags = 1 << 27;

  const std::string& name() const;  // "student.dp"
  int rank() const;                 // position in ranks()
  int size() const;
  const std::vector<int>& ranks() const;  // global ranks of the role
  // Whether collectives of tensors on the world's device are the device's own; if not, they go
  // through host memory.
  bool has_device_backend() const;

  // In place. One all-reduce on this group.
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  Work all_reduce_async(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  // In place, from the member at position `root`. One broadcast.
  void broadcast(at::Tensor& tensor, int root);
  // [size, ...] stacked in group order. One all-gather.
  at::Tensor all_gather(const at::Tensor& tensor);
  // Equal parts in group order: part r of `out` [size * k] becomes rank r's `in` [k]. Any dtype,
  // the same for both; `in` may be this rank's own part of `out`. Every rank sends its part to
  // every other: (size - 1) * k elements, straight into place.
  void all_gather_into(at::Tensor& out, const at::Tensor& in);
  Work all_gather_into_async(at::Tensor& out, const at::Tensor& in);
  // The counterpart: `out` [k] becomes the sum over the ranks of their part rank() of `in` [size *
  // k]. fp32, with a device backend any float dtype, which it then sums in. One dimension each;
  // `out` may be this rank's own part of `in`, the other parts stay as they are. In host memory
  // every rank sends part r to rank r, (size - 1) / size of the bytes of `in`, and sums what it
  // gets in rank order: the same bits in every run and for every partner. Holds (size - 1) * k
  // elements until wait().
  void reduce_scatter(at::Tensor& out, const at::Tensor& in);
  Work reduce_scatter_async(at::Tensor& out, const at::Tensor& in);
  // One point-to-point message to / from the member at that position (shape and dtype agreed
  // beforehand; tag in [0, kMaxMessageTags)). send() returns when the receiver has taken the
  // message, so two ranks must pair their calls in one order; the asynchronous forms only post it.
  // The Work of a receive is done when the data is in `tensor`, that of a send when the receiver
  // has taken it.
  // Messages between two ranks with one tag arrive in the order of the calls.
  void send(const at::Tensor& tensor, int to, int tag = 0);
  void recv(at::Tensor& tensor, int from, int tag = 0);
  Work send_async(const at::Tensor& tensor, int to, int tag = 0);
  Work recv_async(at::Tensor& tensor, int from, int tag = 0);
  void barrier();

  // Conveniences for host values; each is one collective.
  int64_t all_reduce(int64_t value, ReduceOp op = ReduceOp::kSum);
  double all_reduce(double value, ReduceOp op = ReduceOp::kSum);
  std::string broadcast(const std::string& bytes, int root);  // two broadcasts: length, bytes

  // Every member's bytes in group order, whose lengths may differ. Two all-gathers: lengths, bytes,
  // each as long as the longest, of which this holds `size`.
  std::vector<std::string> all_gather(const std::string& bytes);

 private:
  friend class Vote;  // an operation of its own: vote.h

  std::shared_ptr<Impl> impl_;
};

}  // namespace retort::parallel
