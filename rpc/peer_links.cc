#include "rpc/peer_links.h"

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "rpc/detail/concurrency_limit.h"
#include "rpc/transport/dial.h"

namespace retort::rpc {

using Clock = std::chrono::steady_clock;

struct PeerLinks::State {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::map<std::string, Link> links;
  uint64_t changes = 0;
  bool stopping = false;
  size_t idle = 0;  // threads that wait for a peer's turn
  // These are the attempts under way. Their threads wait for them and the destructor cancels them,
  // both through the future's own lock.
  std::map<std::string, std::shared_ptr<Future<Empty>>> attempts;

  bool is_up(const std::string& peer) const {
    const auto found = links.find(peer);
    return found != links.end() && found->second.up;
  }
  void lost(const std::string& peer, const std::string& reason) {
    std::lock_guard lock(mutex);
    if (!is_up(peer) || stopping) return;
    RETORT_LOG(kWarning) << peer << " is lost (" << reason << "); connecting again";
    const bool tried_now = links[peer].tried_now;
    links[peer] = {};
    links[peer].tried_now = tried_now;
    ++changes;
    changed.notify_all();
  }
};

PeerLinks::PeerLinks(Agent& agent, Options options)
    : agent_(agent), options_(std::move(options)), state_(std::make_shared<State>()) {
  RETORT_CHECK(options_.find) << "PeerLinks needs `find`";
  agent_.on_peer_lost([state = state_](const std::string& peer, const std::string& reason) {
    state->lost(peer, reason);
  });
  std::lock_guard lock(state_->mutex);
  add_thread();
}

PeerLinks::~PeerLinks() {
  agent_.on_peer_lost(nullptr);
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    for (auto& [peer, attempt] : state_->attempts)
      attempt->cancel();
    state_->changed.notify_all();
  }
  // Nobody adds a thread any more: run() sees `stopping` first, under the same lock.
  for (std::thread& thread : threads_)
    thread.join();
}

void PeerLinks::add_thread() {
  threads_.emplace_back([this] { run(); });
}

void PeerLinks::keep(const std::string& peer, Deadline deadline) {
  keep_at({.peer = peer, .address = {}}, deadline, false);
}

void PeerLinks::keep_at(const Place& place, Deadline deadline, const std::atomic<bool>& given_up) {
  // The address is looked up again after every failure: the peer may be lost, and started again
  // elsewhere, before it answers.
  std::string address = place.address;
  Duration pause = options_.first_pause;
  for (bool connected = false; !connected;) {
    if (address.empty()) address = options_.find(place.peer, deadline);
    const Deadline attempt = Deadline::after(options_.attempt);
    try {
      agent_.connect(place.peer, address, Deadline(std::min(attempt.time(), deadline.time())));
      connected = true;
    } catch (const Error& error) {
      const bool last = given_up || Deadline::after(pause).time() >= deadline.time();
      if (!may_be_elsewhere(error) || last) throw;
      std::this_thread::sleep_for(transport::with_jitter(pause));
      pause = Duration(std::min(2 * pause.count(), options_.longest_pause.count()));
      address.clear();
    }
  }

  std::lock_guard lock(state_->mutex);
  state_->links[place.peer].up = is_live(place.peer);
  state_->changed.notify_all();
}

void PeerLinks::keep_all(std::vector<Place> places, Deadline deadline) {
  // In random order, processes that start together do not all ask the same peer first.
  std::shuffle(places.begin(), places.end(), std::minstd_rand(std::random_device{}()));
  std::atomic<size_t> next{0};
  std::atomic<bool> given_up{false};
  std::mutex error_mutex;
  std::exception_ptr first_error;
  detail::ConcurrencyLimit pace(kAtFirst, kAtOnce);
  // Every thread takes the next peer that is left. The first error ends them all, because the
  // caller needs all peers.
  const auto connect_some = [&] {
    for (size_t i = next++; i < places.size() && !given_up; i = next++) {
      pace.enter();
      const auto start = Clock::now();
      try {
        if (!given_up) keep_at(places[i], deadline, given_up);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!first_error) first_error = std::current_exception();
        given_up = true;
      }
      pace.leave(Clock::now() - start);
    }
  };

  // The caller's own thread is one of those that connect.
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(kAtOnce, places.size()); ++i)
    threads.emplace_back(connect_some);
  connect_some();
  for (std::thread& thread : threads)
    thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

// True if a successor's address may be found later: nobody answers, or who answers is another
// process, which has the port of one that is gone.
bool PeerLinks::may_be_elsewhere(const Error& error) {
  return error.code() == ErrorCode::kTimeout || transport::is_somebody_else(error);
}

// Called with the lock held. The agent knows of a loss before it calls us, and that call waits for
// the lock, so that no loss is forgotten.
bool PeerLinks::is_live(const std::string& peer) const {
  const std::vector<std::string> live = agent_.peers();
  return std::find(live.begin(), live.end(), peer) != live.end();
}

bool PeerLinks::up(const std::string& peer) const {
  std::lock_guard lock(state_->mutex);
  return state_->is_up(peer);
}

bool PeerLinks::wait_up(const std::vector<std::string>& peers, Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline.time(), [&] {
    return std::all_of(peers.begin(), peers.end(),
                       [&](const std::string& peer) { return state_->is_up(peer); });
  });
}

void PeerLinks::wait_change(uint64_t seen, Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, deadline.time(), [&] { return state_->changes != seen; });
}

uint64_t PeerLinks::changes() const {
  std::lock_guard lock(state_->mutex);
  return state_->changes;
}

std::function<void()> PeerLinks::on_back(std::function<void(const std::string&)> listener) {
  std::lock_guard lock(listeners_mutex_);
  const uint64_t id = next_listener_++;
  listeners_.emplace(id, std::move(listener));
  return [this, id] {
    std::lock_guard remove(listeners_mutex_);
    listeners_.erase(id);
  };
}

void PeerLinks::tell(const std::string& peer) {
  std::lock_guard lock(listeners_mutex_);
  for (const auto& [id, listener] : listeners_)
    listener(peer);
}

// Waits until it is the turn of a lost peer, and returns its name; empty when this object ends.
std::string PeerLinks::next_due(std::unique_lock<std::mutex>& lock) {
  State& state = *state_;
  const auto rests = [](const Link& link) { return link.up || link.tried_now; };
  while (!state.stopping) {
    const auto is_next = [&](const auto& a, const auto& b) {
      return std::pair(rests(a.second), a.second.next) < std::pair(rests(b.second), b.second.next);
    };
    const auto next = std::min_element(state.links.begin(), state.links.end(), is_next);
    if (next != state.links.end() && !rests(next->second) && next->second.next <= Clock::now()) {
      // No other thread takes this peer until the attempt has ended.
      next->second.tried_now = true;
      return next->first;
    }

    // A thread that waits counts as idle, so that run() knows whether another one is needed.
    ++state.idle;
    if (next == state.links.end() || rests(next->second))
      state.changed.wait(lock);
    else
      state.changed.wait_until(lock, next->second.next);
    --state.idle;
  }
  return {};
}

void PeerLinks::run() {
  for (;;) {
    std::unique_lock lock(state_->mutex);
    const std::string peer = next_due(lock);
    if (peer.empty()) return;
    // While this thread is busy another one waits for the next peer, so that an attempt that takes
    // long holds up no other.
    if (state_->idle == 0 && threads_.size() < kAtOnce) add_thread();
    lock.unlock();
    attempt(peer);
  }
}

// A store that is gone, or new and empty, says nothing of a peer that is still where it was.
std::string PeerLinks::find(const std::string& peer, Deadline deadline) {
  try {
    return look_up(peer, Deadline::after(options_.attempt / 2));
  } catch (const Error&) {
    const std::string before = agent_.where(peer);
    if (before.empty() || deadline.expired()) throw;
    return before;
  }
}

// Looks up in slices of time, after each of which it sees whether this object ends.
std::string PeerLinks::look_up(const std::string& peer, Deadline deadline) {
  for (;;) {
    const Deadline slice = Deadline::after(kLookUpSlice);
    try {
      return options_.find(peer, Deadline(std::min(slice.time(), deadline.time())));
    } catch (const Error& error) {
      std::lock_guard lock(state_->mutex);
      if (error.code() != ErrorCode::kTimeout || deadline.expired() || state_->stopping) throw;
    }
  }
}

void PeerLinks::connect(const std::string& peer) {
  {
    // Another thread may have had the lock since this peer's turn came.
    std::lock_guard lock(state_->mutex);
    if (state_->stopping)
      throw Error(ErrorCode::kCancelled, "nobody needs the connection any more");
  }
  const Deadline deadline = Deadline::after(options_.attempt);
  const std::string address = find(peer, deadline);
  std::shared_ptr<Future<Empty>> attempt;
  {
    std::lock_guard lock(state_->mutex);
    if (state_->stopping)
      throw Error(ErrorCode::kCancelled, "nobody needs the connection any more");
    attempt = std::make_shared<Future<Empty>>(
        agent_.start_connect(peer, address, deadline, Agent::Attempts::kOnce));
    state_->attempts[peer] = attempt;
  }
  // This ends in any case: the attempt has a deadline of its own, and the destructor cancels it.
  while (!attempt->wait(Deadline::after(options_.attempt))) {
  }
  std::lock_guard lock(state_->mutex);
  state_->attempts.erase(peer);
  attempt->get();
}

void PeerLinks::attempt(const std::string& peer) {
  std::string failure;
  try {
    connect(peer);
  } catch (const std::exception& error) {
    failure = error.what();
  }

  {
    std::lock_guard lock(state_->mutex);
    Link& link = state_->links.at(peer);
    link.tried_now = false;
    link.up = failure.empty() && is_live(peer);
    if (!link.up) {
      link.pause = link.pause.count() == 0
                       ? options_.first_pause
                       : Duration(std::min(2 * link.pause.count(), options_.longest_pause.count()));
      link.next = Clock::now() + transport::with_jitter(link.pause);
      // An error that repeats is logged once.
      if (failure != link.last_error) {
        RETORT_LOG(kDebug) << peer << ": " << failure;
      }
      link.last_error = failure;
      return;
    }
    RETORT_LOG(kInfo) << peer << " is connected again";
    ++state_->changes;
    state_->changed.notify_all();
  }
  // Listeners run without the lock, so that they may ask for the state of the links.
  tell(peer);
}

}  // namespace retort::rpc
