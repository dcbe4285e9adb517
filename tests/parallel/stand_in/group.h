// A group of ranks on the stand-in device, whose collectives are as asynchronous as NCCL's: each
// runs on a thread of the group, in the order of the starts, and what comes out is seen once it was
// waited for. What a real device would punish at some time, this one does at once:
//
//   from start to wait()    all bytes of the result are 0xff: not a number in every floating-point
//                           dtype, -1 in integers
//   at wait()               neither the result nor the input was written to meanwhile
//   before data moves       all ranks have started the same operation with as many bytes and dtype;
//                           two that have another group in common have both started each of its
//                           operations before, or both not yet
//   where a rank is late    half of the group's timeout, three quarters at the end, then an error
//                           that names it
//   at the end              all ranks have started as many operations and waited for each
//
// Data, and what the ranks tell one another, goes through the run's store (board.h).
// Errors: std::runtime_error, as c10d's; the first one of the process ends all of its groups, and
//   the other ranks hear of it. Broadcasts and gathers get bytes, so that another dtype of the same
//   width cannot be told.
// Threads: starts and waits from one thread at a time, as Group says; the rest from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/parallel/stand_in/board.h"
#include "tests/parallel/stand_in/ledger.h"
#include "tests/parallel/stand_in/start.h"

namespace retort::test {

class StandInWork;

class StandInGroup final : public c10d::Backend {
 public:
  // `key`: as the Ledger's, which outlives the group.
  StandInGroup(StandInMember member, std::string key, std::chrono::milliseconds timeout,
               Board board, std::shared_ptr<Ledger> ledger);
  ~StandInGroup() override;

  const std::string getBackendName() const override { return "stand_in"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override;
  void abort() override;
  // Waits for the other ranks; throws if they have started another number of operations, or if one
  // was never waited for.
  void shutdown() override;

 private:
  // What comes out of what the ranks bring, in the order of the group.
  using Combine = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
  struct Operation {
    Start start;
    at::ScalarType dtype;
    Combine combine;
    c10::intrusive_ptr<StandInWork> work;
  };

  c10::intrusive_ptr<c10d::Work> begin(std::string name, at::Tensor out, const at::Tensor& in,
                                       Combine combine);
  void run();
  void complete(Operation& operation);
  std::vector<Start> meet(const Start& mine);
  void judge_missing(const Start& mine, bool is_late);
  std::string instead_of_missing(int position) const;
  void check_failures();
  void check_ends();
  void spread_failure();
  [[noreturn]] void fail(const std::string& text);

  const StandInMember member_;
  const std::string key_;
  const std::chrono::milliseconds timeout_;
  Board board_;
  const std::shared_ptr<Ledger> ledger_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Operation> queue_;
  bool busy_ = false;  // with an operation that is not in the queue any more
  bool stop_ = false;
  bool spread_ = false;  // the failure; only the thread's
  std::thread thread_;   // last: it uses all above
};

}  // namespace retort::test
