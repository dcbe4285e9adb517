#include "roles/generator/pushed_weights.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "roles/generator/weight_checksum.h"

namespace retort::roles {
namespace {

// kLook is the time between two looks at a commit, kPause the time until another attempt at what
// was refused for now.
constexpr std::chrono::milliseconds kLook{50}, kPause{200};

// Tells whether an error passes by itself: the peer is away and comes back, or is busy with
// something before it.
bool may_pass(const Error& error) {
  const ErrorCode code = error.code();
  return code == ErrorCode::kPeerLost || code == ErrorCode::kUnavailable ||
         code == ErrorCode::kTimeout || code == ErrorCode::kCancelled ||
         code == ErrorCode::kResourceExhausted;
}

}  // namespace

PushedWeights::PushedWeights(rpc::Agent& agent, rpc::PeerLinks& links, Options options)
    : agent_(agent), options_(std::move(options)) {
  self_->alive = this;
  end_listening_ = links.on_back([this](const std::string& peer) {
    if (index_of(peer) >= 0) restore(peer);
  });
  thread_ = std::thread([this] { run(); });
}

PushedWeights::~PushedWeights() {
  // Callbacks of the links and of commits must end before the object does; only then may the
  // thread.
  end_listening_();
  {
    std::lock_guard lock(self_->mutex);
    self_->alive = nullptr;
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

int64_t PushedWeights::index_of(const std::string& peer) const {
  const auto found = std::find(options_.peers.begin(), options_.peers.end(), peer);
  return found == options_.peers.end() ? -1 : found - options_.peers.begin();
}

void PushedWeights::keep(uint64_t version, std::vector<std::vector<WeightBucket>> buckets) {
  kept_ = Kept{.version = version, .buckets = std::move(buckets), .commit = {}};
}

std::vector<std::vector<WeightBucket>> PushedWeights::take() {
  std::vector<std::vector<WeightBucket>> buckets;
  if (kept_) buckets = std::move(kept_->buckets);
  kept_.reset();
  return buckets;
}

std::unique_lock<std::mutex> PushedWeights::pause() {
  // While wanted_ says that a push waits, the thread gives way at its next wait (answer()).
  ++wanted_;
  std::unique_lock sending(sending_);
  --wanted_;
  return sending;
}

void PushedWeights::keep(const CommitWeights& commit) {
  const std::unique_lock sending = pause();
  if (kept_ && kept_->version == commit.version) kept_->commit = commit;
}

void PushedWeights::restore(const std::string& peer) {
  std::lock_guard lock(mutex_);
  to_restore_[peer] = Clock::now();
  work_.notify_all();
}

void PushedWeights::commit_again(int64_t replica) {
  std::lock_guard lock(mutex_);
  to_commit_.insert(replica);
  work_.notify_all();
}

std::function<void(int64_t)> PushedWeights::committer() const {
  // A commit may be answered after this object is gone, so the callback asks whether it is there.
  return [self = self_](int64_t replica) {
    std::lock_guard lock(self->mutex);
    if (self->alive) self->alive->commit_again(replica);
  };
}

void PushedWeights::check() const {
  std::lock_guard lock(mutex_);
  if (failed_) throw *failed_;
}

void PushedWeights::fail(const Error& error) {
  RETORT_LOG(kError) << "weights cannot be restored: " << error.what();
  std::lock_guard lock(mutex_);
  if (!failed_) failed_ = error;
}

void PushedWeights::run() {
  rpc::use_device_in_thread(agent_.device());
  while (wait_for_work()) {
    restore_next();
    look_after_commits();
  }
}

// Waits until there is something to do. False when the object ends.
bool PushedWeights::wait_for_work() {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return to_restore_.empty() && to_commit_.empty() && commits_.empty(); };
  work_.wait(lock, [&] { return stopping_ || !idle(); });
  // Something waits for its time or for an answer, of which no one notifies: the next look comes
  // after kLook.
  if (!stopping_) work_.wait_for(lock, kLook, [&] { return stopping_; });
  return !stopping_;
}

void PushedWeights::restore_next() {
  std::string peer;
  {
    std::lock_guard lock(mutex_);
    const auto due = std::find_if(to_restore_.begin(), to_restore_.end(),
                                  [](const auto& entry) { return entry.second <= Clock::now(); });
    if (due == to_restore_.end()) return;
    peer = due->first;
    to_restore_.erase(due);
  }

  // A peer that is lost once more is restored when it is back.
  try {
    send_to(peer);
  } catch (const Error& error) {
    // kMismatch says that this came late: the peer has all of it by now, or newer weights, as the
    // next look will show.
    if (!may_pass(error) && error.code() != ErrorCode::kMismatch)
      return fail(error.with("generator", peer));
    RETORT_LOG(kInfo) << "weights for " << peer << " are sent later: " << error.what();
    std::lock_guard lock(mutex_);
    if (error.code() != ErrorCode::kPeerLost) to_restore_.try_emplace(peer, Clock::now() + kPause);
  }
}

// Waits for an answer, but gives up when the object ends or a push waits, because whoever is asked
// may be busy for long.
template <class T>
T PushedWeights::answer(Future<T> future) {
  while (!future.wait(Deadline::after(kPause))) {
    if (wanted_ > 0) throw Error(ErrorCode::kCancelled, "a push goes first");
    std::lock_guard lock(mutex_);
    if (stopping_) throw Error(ErrorCode::kCancelled, "the client of the generators ends");
  }
  return future.get();
}

void PushedWeights::send_to(const std::string& peer) {
  std::lock_guard sending(sending_);
  if (!kept_) return;
  const int64_t index = index_of(peer);
  const GeneratorInfo info = answer(agent_.call(
      peer, kGeneratorInfo, {}, {.timeout = options_.timeout, .wait_for_credit = false}));
  // This is not kMismatch, which restore_next() takes for a version that came late.
  if (info.base_weights != options_.base_weights)
    throw Error(ErrorCode::kCorrupt,
                "the generator came back with other weights in its model's folder than the run "
                "began with; the adapter that it is sent means nothing beside them. Put the files "
                "back and go on with --resume");
  if (info.weight_version >= kept_->version) return;

  // A peer that has checked this version for a commit has all of it, so nothing is sent.
  if (info.committed_version < kept_->version) {
    send_buckets(peer, kept_->buckets.at(static_cast<size_t>(index % options_.tp)));
    RETORT_LOG(kInfo) << "weights of version " << kept_->version << " were sent again to " << peer;
  }
  if (kept_->commit && index % options_.tp == 0) commit_again(index / options_.tp);
}

void PushedWeights::send_buckets(const std::string& peer,
                                 const std::vector<WeightBucket>& buckets) {
  std::deque<Future<Empty>> on_their_way;
  const auto settle = [&](size_t left) {
    for (; on_their_way.size() > left; on_their_way.pop_front())
      answer(std::move(on_their_way.front()));
  };
  // A push may wait for the lock that is held here, so nobody waits for credit: what is on its way
  // makes room, and where nothing is, the peer is full of something before and is asked later.
  const auto send = [&](const WeightBucket& bucket) {
    Future<Empty> reply = agent_.call(peer, kWeightsBucket, bucket,
                                      {.timeout = options_.timeout, .wait_for_credit = false});
    if (on_their_way.empty() || !reply.ready()) {
      on_their_way.push_back(std::move(reply));
      return true;
    }
    try {
      answer(std::move(reply));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kResourceExhausted) throw;
      return false;
    }
  };
  for (const WeightBucket& bucket : buckets) {
    settle(kOnTheirWay - 1);
    while (!send(bucket))
      settle(on_their_way.size() - 1);
  }
  settle(0);
}

void PushedWeights::look_after_commits() {
  std::set<int64_t> asked;
  {
    std::lock_guard lock(mutex_);
    asked.swap(to_commit_);
  }
  for (const int64_t replica : asked) {
    // An answer that came before is of no use: the replica was lost since, or has lost the weights.
    Commit& commit = commits_[replica];
    if (commit.reply && commit.reply->ready()) commit.reply.reset();
  }

  // While a push goes on nothing is committed from here: it has a commit of its own.
  std::unique_lock sending(sending_, std::try_to_lock);
  if (!sending) return;
  for (auto entry = commits_.begin(); entry != commits_.end();)
    entry = still_to_commit(entry->first, entry->second) ? std::next(entry) : commits_.erase(entry);
}

// Sends the commit when it is time and looks for its answer. False when nothing is left to do.
bool PushedWeights::still_to_commit(int64_t replica, Commit& commit) {
  if (!kept_) return false;
  // Nothing was committed yet, and a commit must not come before the last sender has sent all of
  // it.
  if (!kept_->commit) return true;
  if (commit.version != kept_->version) commit = {.version = kept_->version, .reply = {}};
  const std::string& leader = options_.peers.at(static_cast<size_t>(replica * options_.tp));
  try {
    if (!commit.reply && commit.next <= Clock::now())
      commit.reply =
          agent_.call(leader, kWeightsCommit, *kept_->commit,
                      {.timeout = options_.generation_timeout, .wait_for_credit = false});
    if (!commit.reply || !commit.reply->ready()) return true;
    const CommitReply reply = commit.reply->get();
    if (reply.checksum != weights_checksum(kept_->commit->receipts))
      throw Error(ErrorCode::kMismatch, "the generator took over other weights than were sent");
    RETORT_LOG(kInfo) << leader << " uses the weights of version " << reply.version << " again";
    return false;
  } catch (const Error& error) {
    if (!may_pass(error)) fail(error.with("generator", leader));
    // A lost peer is not asked again from here: send_to() commits when it is back.
    if (!may_pass(error) || error.code() == ErrorCode::kPeerLost) return false;
    commit.reply.reset();
    commit.next = Clock::now() + kPause;
    return true;
  }
}

}  // namespace retort::roles
