#include "recipes/run/rows/data_fingerprint.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "parallel/vote.h"
#include "recipes/run/loop/agreement.h"

namespace retort::recipes {

DataFingerprint::DataFingerprint(const data::RowSet& rows, parallel::World& world)
    : rows_(rows), world_(world), made_(promise_.get_future().share()) {
  thread_ = std::thread([this] {
    thread_id_ = static_cast<pid_t>(::syscall(SYS_gettid));
    try {
      promise_.set_value(rows_.fingerprint([this] { return stop_.load(); }));
    } catch (...) {
      promise_.set_exception(std::current_exception());
    }
  });
}

DataFingerprint::~DataFingerprint() {
  stop_ = true;
  thread_.join();
}

void DataFingerprint::set_nice(int nice) const {
  if (const pid_t id = thread_id_; id != 0)
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(id), nice);
}

bool DataFingerprint::is_made(Duration limit) const {
  return made_.wait_for(limit) == std::future_status::ready;
}

void DataFingerprint::wait_before_training(Duration most) {
  const bool is_late = !is_made(most);
  compare_if_made();
  if (!is_late) return;

  // Linux has a nice value for each thread. This one leaves it a tenth of a core that computes, and
  // all of one that is idle.
  constexpr int kNice = 10;
  set_nice(kNice);
  if (world_.rank() == 0) {
    RETORT_LOG(kInfo) << "the SHA-256 of the data is made beside training";
  }
}

void DataFingerprint::finish() {
  // This may fail: not every process may raise what it has lowered. The thread has an idle core for
  // itself anyway.
  set_nice(0);

  // A collective is bounded by the group's timeout, which the disk of another rank is not: so each
  // rank comes to one every few seconds, until all of them have it.
  constexpr Duration kMostLook{5'000};
  constexpr int kLooksOfALine = 6;
  const Duration look = std::min(kMostLook, world_.options().timeout / 4);
  for (int looks = 0; !compared_; ++looks) {
    is_made(look);
    compare_if_made();
    if (compared_ || looks % kLooksOfALine != 0 || world_.rank() != 0) continue;
    RETORT_LOG(kInfo) << "waits for the SHA-256 of all data, which a checkpoint has and a resumed "
                         "run compares; where a stop cannot wait for it, raise "
                         "launch.stop_timeout";
  }
}

void DataFingerprint::after_step() {
  if (!compared_) compare_if_made();
}

void DataFingerprint::complete(LoopState& state) {
  if (!compared_) finish();
  state.data_fingerprint = made_.get();
  state.rows = rows_.identity();
}

void DataFingerprint::compare_if_made() {
  const bool mine = is_made(Duration(0));
  if (!mine && world_.all().size() == 1) return;
  // The ranks compare once all of them have theirs; a rank that came to the all-gather before would
  // wait there for the slowest disk.
  const int64_t late = world_.all().all_reduce(int64_t{mine ? 0 : 1}, parallel::ReduceOp::kMax);
  if (late > 0) return;
  const std::string fingerprint = parallel::run_on_all(world_.all(), [&] { return made_.get(); });
  check_same_rows(world_, fingerprint);
  compared_ = true;
}

}  // namespace retort::recipes
