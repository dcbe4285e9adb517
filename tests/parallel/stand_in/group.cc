#include "tests/parallel/stand_in/group.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "base/log.h"
#include "base/sizes.h"
#include "tests/parallel/stand_in/work.h"

namespace retort::test {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread without work sleeps before it looks whether another group has failed.
constexpr std::chrono::milliseconds kIdle{100};

// How long a rank waits in an operation for one that does not come. That at the end is longer: the
// others of this group may miss a rank of another one, and then their error tells more.
std::chrono::milliseconds patience(std::chrono::milliseconds timeout) { return timeout / 2; }
std::chrono::milliseconds patience_at_end(std::chrono::milliseconds timeout) {
  return timeout * 3 / 4;
}

std::string name_of(const c10d::ReduceOp& op) {
  if (op == c10d::ReduceOp::SUM) return "sum";
  if (op == c10d::ReduceOp::MAX) return "max";
  if (op == c10d::ReduceOp::MIN) return "min";
  throw std::runtime_error("a reduction that the stand-in has not");
}

at::Tensor reduced(const std::vector<at::Tensor>& parts, const std::string& op) {
  at::Tensor result = parts.front().clone();
  for (size_t i = 1; i < parts.size(); ++i) {
    if (op == "sum") result += parts[i];
    if (op == "max") result = at::maximum(result, parts[i]);
    if (op == "min") result = at::minimum(result, parts[i]);
  }
  return result;
}

at::Tensor host_tensor(const std::string& bytes, at::ScalarType dtype) {
  const size_t width = c10::elementSize(dtype);
  at::Tensor tensor = at::empty({to_int64(bytes.size() / width)}, dtype);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string host_bytes(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

}  // namespace

StandInGroup::StandInGroup(StandInMember member, std::string key, std::chrono::milliseconds timeout,
                           Board board, std::shared_ptr<Ledger> ledger)
    : c10d::Backend(member.position, to_int(member.ranks.size())),
      member_(std::move(member)),
      key_(std::move(key)),
      timeout_(timeout),
      board_(std::move(board)),
      ledger_(std::move(ledger)),
      thread_([this] { run(); }) {}

StandInGroup::~StandInGroup() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

c10::intrusive_ptr<c10d::Work> StandInGroup::allreduce(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceOptions& options) {
  const std::string op = name_of(options.reduceOp);
  return begin("all_reduce " + op, tensors.at(0), tensors.at(0),
               [op](const auto& parts) { return reduced(parts, op); });
}

c10::intrusive_ptr<c10d::Work> StandInGroup::broadcast(std::vector<at::Tensor>& tensors,
                                                       const c10d::BroadcastOptions& options) {
  const size_t root = to_size(options.rootRank);
  return begin("broadcast from " + member_.rank_at(to_int(root)), tensors.at(0), tensors.at(0),
               [root](const auto& parts) { return parts.at(root); });
}

c10::intrusive_ptr<c10d::Work> StandInGroup::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                             const c10d::AllgatherOptions&) {
  return begin("all_gather", out, in, [](const auto& parts) { return at::cat(parts); });
}

c10::intrusive_ptr<c10d::Work> StandInGroup::_reduce_scatter_base(
    at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) {
  const std::string op = name_of(options.reduceOp);
  const int64_t size = out.numel();
  const int64_t first = member_.position * size;
  return begin("reduce_scatter " + op, out, in,
               [=](const auto& parts) { return reduced(parts, op).narrow(0, first, size); });
}

c10::intrusive_ptr<c10d::Work> StandInGroup::begin(std::string name, at::Tensor out,
                                                   const at::Tensor& in, Combine combine) {
  if (const auto failure = ledger_->failure()) throw std::runtime_error(*failure);
  Start start{.operation = std::move(name),
              .bytes = to_int64(in.nbytes()),
              .dtype = c10::toString(in.scalar_type()),
              .before = {},
              .data = bytes_of(in)};
  ledger_->start(key_, start);

  Start without_data = start;
  without_data.data.clear();
  auto work = c10::make_intrusive<StandInWork>(
      StandInWork::Origin{ledger_, key_, member_, std::move(without_data)}, std::move(out), in);
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(start), in.scalar_type(), std::move(combine), work});
  wake_.notify_all();
  return work;
}

void StandInGroup::run() {
  std::unique_lock lock(mutex_);
  while (!stop_ || !queue_.empty()) {
    if (queue_.empty()) {
      busy_ = false;
      wake_.notify_all();
      wake_.wait_for(lock, kIdle);
    }
    std::optional<Operation> operation;
    if (!queue_.empty()) {
      operation = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }

    // The work is let go without the lock, because its end is told to the ledger.
    lock.unlock();
    if (operation) {
      try {
        complete(*operation);
      } catch (const std::exception& e) {
        operation->work->fail(ledger_->fail(e.what()));
      }
    }
    operation.reset();
    spread_failure();
    lock.lock();
  }
  lock.unlock();
  spread_failure();
}

// The steps of one operation: all ranks meet, agree, and then each forms the result by itself.
void StandInGroup::complete(Operation& operation) {
  const std::vector<Start> starts = meet(operation.start);
  for (int position = 0; position < getSize(); ++position)
    if (const auto what = difference(member_, operation.start, position, starts[to_size(position)],
                                     ledger_->groups()))
      fail(*what);

  std::vector<at::Tensor> parts;
  for (const Start& start : starts)
    parts.push_back(host_tensor(start.data, operation.dtype));
  operation.work->complete(host_bytes(operation.combine(parts)));
}

std::vector<Start> StandInGroup::meet(const Start& mine) {
  const auto late = Clock::now() + patience(timeout_);
  board_.tell(mine.number, mine.to_text());
  std::optional<std::vector<std::string>> texts;
  while (!(texts = board_.read(mine.number)))
    judge_missing(mine, Clock::now() > late);

  // All are here, so nobody reads any more what was told of the operation before.
  if (mine.number > 1) board_.forget(mine.number - 1);
  std::vector<Start> starts;
  for (const std::string& text : *texts)
    starts.push_back(start_from_text(text));
  return starts;
}

// Throws if one of those that are not here will not come, or did not in time.
void StandInGroup::judge_missing(const Start& mine, bool is_late) {
  check_failures();
  for (int position = 0; position < getSize(); ++position) {
    if (board_.read_from(position, mine.number)) continue;
    const std::string other = member_.rank_at(position);
    const auto end = board_.end_of(position);
    if (end)
      fail(operation_text(member_, mine) + " was started by " + member_.rank() + ", but " + other +
           " has ended the group after operation " + std::to_string(*end));
    if (is_late)
      fail(operation_text(member_, mine) + " was started by " + member_.rank() +
           ", and timed out: not by " + other + " within " +
           std::to_string(patience(timeout_).count()) + " ms" + instead_of_missing(position));
  }
}

// What the missing rank has started in another group that this rank has not.
std::string StandInGroup::instead_of_missing(int position) const {
  const int rank = member_.ranks.at(to_size(position));
  for (const auto& [key, group] : ledger_->groups()) {
    const auto there = std::ranges::find(group.ranks, rank);
    if (key == key_ || there == group.ranks.end()) continue;
    const int place = to_int(there - group.ranks.begin());
    Board board = board_.of_group(key, group.position, to_int(group.ranks.size()));
    if (const auto text = board.read_from(place, ledger_->num_started(key) + 1))
      return "; it has started " + operation_text(group, start_from_text(*text)) + " instead";
  }
  return "";
}

// Throws the first failure of this process, or of another rank of the group.
void StandInGroup::check_failures() {
  if (const auto failure = ledger_->failure()) throw std::runtime_error(*failure);
  for (int position = 0; position < getSize(); ++position) {
    if (position == member_.position) continue;
    if (const auto failure = board_.failure_of(position)) fail(*failure);
  }
}

void StandInGroup::spread_failure() {
  const auto failure = ledger_->failure();
  if (!failure || spread_) return;
  spread_ = true;
  try {
    board_.tell_failure(*failure);
  } catch (const std::exception& e) {
    RETORT_LOG(kWarning) << member_.name << ": the others do not hear of the failure: " << e.what();
  }
}

void StandInGroup::fail(const std::string& text) { throw std::runtime_error(ledger_->fail(text)); }

void StandInGroup::abort() {
  ledger_->fail(member_.rank() + " gave up " + member_.name + " after operation " +
                std::to_string(ledger_->num_started(key_)) + ", which it has with " +
                member_.others());
}

void StandInGroup::shutdown() {
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  if (const auto failure = ledger_->failure()) throw std::runtime_error(*failure);
  if (const auto unwaited = ledger_->unwaited(key_)) fail(*unwaited);

  // Whoever is still in an operation finds out by this that nobody will come.
  board_.tell_end(ledger_->num_started(key_));
  const auto late = Clock::now() + patience_at_end(timeout_);
  while (!board_.await_ends()) {
    check_failures();
    if (Clock::now() <= late) continue;
    fail(member_.rank() + " has ended " + member_.name + " after operation " +
         std::to_string(ledger_->num_started(key_)) + ", and timed out: not all of " +
         member_.others() + " within " + std::to_string(patience_at_end(timeout_).count()) + " ms");
  }
  check_ends();
  if (const uint64_t count = ledger_->num_started(key_); count > 0) {
    RETORT_LOG(kInfo) << member_.rank() << " has ended " << member_.name << " after operation "
                      << count;
  }
  ledger_->leave(key_);
}

void StandInGroup::check_ends() {
  const uint64_t mine = ledger_->num_started(key_);
  for (int position = 0; position < getSize(); ++position) {
    const uint64_t theirs = board_.end_of(position).value_or(0);
    if (theirs != mine)
      fail(member_.rank() + " has ended " + member_.name + " after operation " +
           std::to_string(mine) + ", " + member_.rank_at(position) + " after operation " +
           std::to_string(theirs));
  }
}

}  // namespace retort::test
