#include "rpc/peer_links.h"

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "rpc/detail/pace.h"
#include "rpc/transport/dial.h"

namespace retort::rpc {

using Clock = std::chrono::steady_clock;

struct PeerLinks::State {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::map<std::string, Link> links;
  uint64_t changes = 0;
  bool stopping = false;

  bool is_up(const std::string& peer) const {
    const auto found = links.find(peer);
    return found != links.end() && found->second.up;
  }
  void lost(const std::string& peer, const std::string& reason) {
    std::lock_guard lock(mutex);
    if (!is_up(peer) || stopping) return;
    RETORT_LOG(kWarning) << peer << " is lost (" << reason << "); connecting again";
    links[peer] = {};
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
  thread_ = std::thread([this] { run(); });
}

PeerLinks::~PeerLinks() {
  agent_.on_peer_lost(nullptr);
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  thread_.join();
}

void PeerLinks::keep(const std::string& peer, Deadline deadline) {
  keep_at({.peer = peer, .address = {}}, deadline, false);
}

void PeerLinks::keep_at(const Place& place, Deadline deadline, const std::atomic<bool>& given_up) {
  // Looked up again now and then: it may be lost, and started again elsewhere, before it answers.
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
  std::shuffle(places.begin(), places.end(), std::minstd_rand(std::random_device{}()));
  std::atomic<size_t> next{0};
  std::atomic<bool> given_up{false};
  std::mutex error_mutex;
  std::exception_ptr first_error;
  detail::Pace pace(kAtFirst, kAtOnce);
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

  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(kAtOnce, places.size()); ++i)
    threads.emplace_back(connect_some);
  connect_some();
  for (std::thread& thread : threads)
    thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

// Whether a successor's address may be found later: nobody answers, or who answers is another
// process, which has the port of one that is gone.
bool PeerLinks::may_be_elsewhere(const Error& error) {
  return error.code() == ErrorCode::kTimeout || transport::is_somebody_else(error);
}

// With the lock held: the agent knows of a loss before it calls us, and that call waits for it.
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

// Waits for the lost peer whose turn it is; empty when it is over.
std::string PeerLinks::next_due(std::unique_lock<std::mutex>& lock) {
  State& state = *state_;
  while (!state.stopping) {
    const auto is_next = [](const auto& a, const auto& b) {
      return std::pair(a.second.up, a.second.next) < std::pair(b.second.up, b.second.next);
    };
    const auto next = std::min_element(state.links.begin(), state.links.end(), is_next);
    if (next == state.links.end() || next->second.up)
      state.changed.wait(lock);
    else if (next->second.next > Clock::now())
      state.changed.wait_until(lock, next->second.next);
    else
      return next->first;
  }
  return {};
}

void PeerLinks::run() {
  for (;;) {
    std::unique_lock lock(state_->mutex);
    const std::string peer = next_due(lock);
    if (peer.empty()) return;
    lock.unlock();
    attempt(peer);
  }
}

// A store that is gone, or new and empty, says nothing of a peer that is still where it was.
std::string PeerLinks::find(const std::string& peer, Deadline deadline) {
  try {
    return options_.find(peer, Deadline::after(options_.attempt / 2));
  } catch (const Error&) {
    const std::string before = agent_.where(peer);
    if (before.empty() || deadline.expired()) throw;
    return before;
  }
}

void PeerLinks::attempt(const std::string& peer) {
  std::string failure;
  try {
    const Deadline deadline = Deadline::after(options_.attempt);
    agent_.connect(peer, find(peer, deadline), deadline, Agent::Attempts::kOnce);
  } catch (const std::exception& error) {
    failure = error.what();
  }

  {
    std::lock_guard lock(state_->mutex);
    Link& link = state_->links.at(peer);
    link.up = failure.empty() && is_live(peer);
    if (!link.up) {
      link.pause = link.pause.count() == 0
                       ? options_.first_pause
                       : Duration(std::min(2 * link.pause.count(), options_.longest_pause.count()));
      link.next = Clock::now() + transport::with_jitter(link.pause);
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
  tell(peer);
}

}  // namespace retort::rpc
