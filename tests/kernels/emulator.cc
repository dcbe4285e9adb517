#include "tests/kernels/emulator.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tests/kernels/dialect.h"

namespace retort::emulator {

Dim3 threadIdx, blockIdx, blockDim, gridDim;
Emulator* Emulator::running_ = nullptr;

namespace {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxGridY = 65535;
constexpr size_t kMaxSharedBytes = 227 << 10;  // an H100's
constexpr int kPoison = 0xff;                  // a NaN of every format, -1 of the integers

Dim3 place_of(unsigned index, const Dim3& size) {
  return {.x = index % size.x, .y = index / size.x % size.y, .z = index / size.x / size.y};
}

// "norm.cuh:88"
std::string text_of(const std::source_location& where) {
  const std::string_view file = where.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(where.line());
}

std::string_view text_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::kBlockBarrier: return "barrier of the block";
    case Meeting::kWarpBarrier: return "barrier of the warp";
    case Meeting::kShuffle: return "shuffle";
    case Meeting::kBallot: return "ballot";
  }
  return "";
}

std::string hexadecimal(unsigned x) {
  std::ostringstream text;
  text << "0x" << std::hex << x;
  return text.str();
}

}  // namespace

void Emulator::run(const std::string& name, Dim3 grid, Dim3 block, size_t shared_bytes,
                   const std::function<void()>& thread) {
  static std::mutex turn;
  const std::lock_guard lock(turn);
  RETORT_CHECK(running_ == nullptr) << "a kernel runs a kernel";
  name_ = name;
  if (block.count() == 0 || block.count() > kMaxThreads || grid.count() == 0 ||
      grid.y > kMaxGridY || shared_bytes > kMaxSharedBytes)
    throw Error(ErrorCode::kInvalidArgument, "no device has such a block or grid")
        .with("kernel", name)
        .with("threads", block.count())
        .with("blocks", grid.count())
        .with("shared_bytes", shared_bytes);

  struct Running {
    explicit Running(Emulator* emulator) { running_ = emulator; }
    ~Running() { running_ = nullptr; }
  } running(this);
  shared_ = std::vector<char>(shared_bytes);  // no larger: the address sanitizer sees its end
  count_ = block.count();
  while (threads_.size() < count_)
    threads_.emplace_back();
  blockDim = block;
  gridDim = grid;

  thrown_ = nullptr;
  const std::function<void()> body = [&] {
    try {
      thread();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  };
  std::vector<unsigned> order(grid.count());
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random_);
  for (const unsigned index : order) {
    blockIdx = place_of(index, grid);
    run_block(body);
  }
}

void Emulator::run_block(const std::function<void()>& body) {
  std::fill(shared_.begin(), shared_.end(), static_cast<char>(kPoison));
  arrays_.clear();
  live_ = count_;
  waiting_ = 0;
  ready_.resize(count_);
  std::iota(ready_.begin(), ready_.end(), 0u);
  for (const unsigned index : ready_) {
    threads_[index].fiber.start(body);
    threads_[index].state = State::kReady;
  }

  while (!ready_.empty()) {
    std::swap(ready_[random_() % ready_.size()], ready_.back());
    const unsigned index = ready_.back();
    ready_.pop_back();
    resume(index);
    settle(index);
  }
  if (live_ != 0) fail_stuck();
}

// Until its next meeting or its end.
void Emulator::resume(unsigned index) {
  Thread& thread = threads_[index];
  current_ = index;
  threadIdx = place_of(index, blockDim);
  thread.fiber.resume();
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));

  if (thread.fiber.has_ended()) {
    thread.state = State::kEnded;
    --live_;
  } else if (thread.arrival.meeting == Meeting::kBlockBarrier) {
    ++waiting_;
  } else if ((thread.arrival.lanes >> (index % kWarpSize) & 1) == 0) {
    fail(describe(index) + ", but it is not one of the lanes " + hexadecimal(thread.arrival.lanes) +
         " that it names");
  }
}

// Lets those go on for whom this thread was the last to come, or to end.
void Emulator::settle(unsigned index) {
  const Thread& thread = threads_[index];
  const unsigned warp = index / kWarpSize;
  if (thread.state == State::kWaiting && thread.arrival.meeting != Meeting::kBlockBarrier)
    return settle_warp(warp, thread.arrival.lanes);

  settle_block();
  if (thread.state != State::kEnded) return;
  const unsigned end = std::min(count_, (warp + 1) * kWarpSize);
  for (unsigned other = warp * kWarpSize; other < end; ++other) {
    const Thread& o = threads_[other];
    if (o.state == State::kWaiting && o.arrival.meeting != Meeting::kBlockBarrier)
      settle_warp(warp, o.arrival.lanes);
  }
}

void Emulator::settle_block() {
  if (live_ == 0 || waiting_ != live_) return;
  waiting_ = 0;
  unsigned first = count_;
  for (unsigned index = 0; index < count_; ++index) {
    if (threads_[index].state == State::kEnded) continue;
    first = std::min(first, index);
    check_same_place(first, index);
    release(index);
  }
}

void Emulator::settle_warp(unsigned warp, unsigned lanes) {
  std::vector<unsigned> present;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const unsigned index = warp * kWarpSize + lane;
    if ((lanes >> lane & 1) == 0 || index >= count_) continue;
    const Thread& thread = threads_[index];
    if (thread.state == State::kEnded) continue;
    const bool is_here = thread.state == State::kWaiting &&
                         thread.arrival.meeting != Meeting::kBlockBarrier &&
                         thread.arrival.lanes == lanes;
    if (!is_here) return;
    present.push_back(index);
  }

  for (const unsigned index : present)
    check_same_place(present.front(), index);
  for (const unsigned index : present)
    threads_[index].result = result_of(threads_[index], present, warp);
  for (const unsigned index : present)
    release(index);
}

uint64_t Emulator::result_of(const Thread& thread, const std::vector<unsigned>& present,
                             unsigned warp) {
  if (thread.arrival.meeting == Meeting::kWarpBarrier) return 0;
  if (thread.arrival.meeting == Meeting::kBallot) {
    uint64_t lanes = 0;
    for (const unsigned index : present)
      lanes |= threads_[index].arrival.value << (index % kWarpSize);
    return lanes;
  }
  const unsigned source = warp * kWarpSize + static_cast<unsigned>(thread.arrival.source);
  const bool is_present = std::binary_search(present.begin(), present.end(), source);
  return is_present ? threads_[source].arrival.value : ~uint64_t{0};
}

void Emulator::release(unsigned index) {
  threads_[index].state = State::kReady;
  ready_.push_back(index);
}

void Emulator::check_same_place(unsigned a, unsigned b) {
  const Arrival& one = threads_[a].arrival;
  const Arrival& other = threads_[b].arrival;
  if (one.meeting == other.meeting && one.where.line() == other.where.line() &&
      std::string_view(one.where.file_name()) == other.where.file_name())
    return;
  fail("threads meet at different places: " + describe(a) + ", " + describe(b));
}

void Emulator::fail_stuck() {
  // One thread of each place is enough.
  std::string text = "threads wait for others that do not come: ";
  std::vector<std::string> places;
  for (unsigned index = 0; index < count_; ++index) {
    if (threads_[index].state != State::kWaiting) continue;
    const Arrival& arrival = threads_[index].arrival;
    const std::string place = text_of(arrival.where) + std::to_string(arrival.lanes);
    if (std::find(places.begin(), places.end(), place) != places.end()) continue;
    text += (places.empty() ? "" : ", ") + describe(index);
    places.push_back(place);
  }
  fail(text + "; " + std::to_string(count_ - live_) + " threads have ended");
}

void Emulator::fail(const std::string& what) {
  throw Error(ErrorCode::kMismatch, what)
      .with("kernel", name_)
      .with("block", std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y));
}

std::string Emulator::describe(unsigned index) const {
  const Arrival& arrival = threads_[index].arrival;
  std::string text = "thread " + std::to_string(index) + " at the " +
                     std::string(text_of(arrival.meeting)) + " of " + text_of(arrival.where);
  if (arrival.meeting != Meeting::kBlockBarrier) text += " for lanes " + hexadecimal(arrival.lanes);
  return text;
}

uint64_t Emulator::meet(const Arrival& arrival) {
  RETORT_CHECK(running_ != nullptr) << "no kernel runs";
  Thread& thread = running_->threads_[running_->current_];
  thread.arrival = arrival;
  thread.state = State::kWaiting;
  thread.fiber.suspend();
  return thread.result;
}

int Emulator::lane() { return static_cast<int>(running_->current_ % kWarpSize); }
void* Emulator::dynamic_shared() { return running_->shared_.data(); }

void Emulator::begin_shared(void* array, size_t bytes) {
  std::vector<void*>& begun = running_->arrays_;
  if (std::find(begun.begin(), begun.end(), array) != begun.end()) return;
  begun.push_back(array);
  std::memset(array, kPoison, bytes);
}

void Emulator::check_alignment(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  Emulator& self = *running_;
  self.fail("thread " + std::to_string(self.current_) + " moves " + std::to_string(alignment) +
            " bytes at once from or to an address that is not a multiple of that");
}

}  // namespace retort::emulator
