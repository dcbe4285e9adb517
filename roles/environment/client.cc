#include "roles/environment/client.h"

#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "roles/environment/episode_places.h"

namespace retort::roles {
namespace {

using Place = EpisodePlaces::Place;

// Between two looks at whether an episode that waits can begin.
constexpr std::chrono::milliseconds kBetweenLooks = EpisodePlaces::kFull;

// The replica does not have the episode, and is there.
bool is_refusal(ErrorCode code) {
  return code == ErrorCode::kResourceExhausted || code == ErrorCode::kUnavailable;
}

ErrorCode code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code();
  } catch (...) {
    return ErrorCode::kRemote;
  }
}

// A role says by kUnavailable that it has lost an episode; to whoever drives that, its environment
// is gone.
std::exception_ptr for_caller(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kUnavailable)
      return std::make_exception_ptr(
          Error(ErrorCode::kPeerLost, e.message(), e.origin(), e.context()));
  } catch (...) {
  }
  return error;
}

template <class Answer>
Future<Answer> failed(const Error& error) {
  Promise<Answer> promise;
  Future<Answer> answer = promise.future();
  promise.set_error(std::make_exception_ptr(error));
  return answer;
}

// Lets a promise be cancelled as a call is.
template <class Answer>
auto cancelling(Promise<Answer> promise) {
  return [promise](std::function<void()> cancel) mutable { promise.on_cancel(std::move(cancel)); };
}

std::exception_ptr cancelled() {
  return std::make_exception_ptr(
      Error(ErrorCode::kCancelled, "nobody waits for episodes any more"));
}

}  // namespace

// What the calls in flight share. Futures are completed, and calls made, without the lock.
class RemoteEnvironment::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(Options options) : options_(std::move(options)), places_(options_.replicas) {}

  void attach(rpc::Agent& agent, rpc::PeerLinks* links);
  EnvironmentInfo info();
  Future<OpenedEpisode> open(OpenEpisode request);
  Future<EpisodeAnswer> step(const EpisodeTurn& turn);
  Future<ClosedEpisode> close(const CloseEpisode& request);
  void stop();

 private:
  struct Opening {
    OpenEpisode request;
    Promise<OpenedEpisode> promise;
    Deadline deadline;
  };

  // Sends it to a replica, or lets it wait for one.
  void begin(Opening opening);
  void send(Opening opening, Place place);
  void opened(Opening opening, Place place, Outcome<OpenedEpisode> outcome);
  void closed(uint64_t episode, Place place, Outcome<ClosedEpisode>& outcome);
  // A call of the episode failed, and with it the episode.
  void ended(uint64_t episode, Place place, ErrorCode code);
  // Why no replica took an episode; with the lock held.
  Error none_came() const;
  // Room, or a replica, may be there for those that wait; with the lock held.
  void tell_news();
  // Where an episode is; the errors of EpisodePlaces::at, and kCancelled.
  Place place_of(uint64_t episode);

  // The thread: lets those begin that wait, and ends those that waited too long.
  void run();
  void look();
  // Asks lost replicas that are connected again what they are.
  void ask_lost();
  void heard(size_t replica, const Outcome<EnvironmentInfo>& outcome);

  // A call whose outcome goes to `then`, once. What cancels it, as stop() does, goes to `begun`
  // before that: `then` may have something else cancelled instead.
  template <class Request, class Reply, class Then>
  void call(size_t replica, const rpc::Method<Request, Reply>& method, const Request& request,
            Then then, const std::function<void(std::function<void()>)>& begun = {});

  const Options options_;
  rpc::Agent* agent_ = nullptr;
  rpc::PeerLinks* links_ = nullptr;
  std::thread thread_;
  std::mutex end_mutex_;  // of the thread's end

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  EpisodePlaces places_;
  std::optional<EnvironmentInfo> info_;
  std::set<size_t> asked_;  // replicas that are asked what they are, since they were lost
  std::deque<Opening> waiting_;
  std::map<uint64_t, std::function<void()>> cancels_;  // of the calls in flight
  uint64_t last_call_ = 0;
  bool news_ = false;  // since the last look
  bool stopped_ = false;
};

void RemoteEnvironment::Impl::attach(rpc::Agent& agent, rpc::PeerLinks* links) {
  RETORT_CHECK(agent_ == nullptr) << "attached twice";
  agent_ = &agent;
  links_ = links;
  thread_ = std::thread([this] { run(); });
}

template <class Request, class Reply, class Then>
void RemoteEnvironment::Impl::call(size_t replica, const rpc::Method<Request, Reply>& method,
                                   const Request& request, Then then,
                                   const std::function<void(std::function<void()>)>& begun) {
  Future<Reply> reply;
  try {
    const bool opens = std::is_same_v<Request, OpenEpisode>;
    reply = agent_->call(options_.replicas[replica], method, request,
                         {.timeout = opens ? options_.open_timeout : options_.timeout});
  } catch (...) {
    then(Outcome<Reply>{std::nullopt, std::current_exception()});
    return;
  }

  const std::function<void()> cancel = reply.canceller();
  uint64_t number = 0;
  bool too_late = false;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_call_;
    cancels_.emplace(number, cancel);
    too_late = stopped_;
  }
  if (begun) begun(cancel);
  reply.on_outcome(
      [self = shared_from_this(), number, then = std::move(then)](Outcome<Reply> outcome) mutable {
        {
          const std::lock_guard lock(self->mutex_);
          self->cancels_.erase(number);
        }
        then(std::move(outcome));
      });
  if (too_late) cancel();
}

EnvironmentInfo RemoteEnvironment::Impl::info() {
  RETORT_CHECK(agent_ != nullptr) << "info() before attach()";
  {
    const std::lock_guard lock(mutex_);
    if (info_) return *info_;
  }

  std::vector<EnvironmentInfo> infos;
  for (const std::string& peer : options_.replicas)
    infos.push_back(rpc::ask_until_up(links_, {peer}, Deadline::after(options_.patience), [&] {
      return agent_->call(peer, kEnvironmentInfo, {}, {.timeout = options_.timeout}).get();
    }));

  EnvironmentInfo sum{.name = options_.role, .user_turns = infos.front().user_turns, .episodes = 0};
  for (const EnvironmentInfo& info : infos) {
    sum.episodes += info.episodes;
    if (info.user_turns != sum.user_turns)
      throw Error(ErrorCode::kMismatch,
                  "replicas of role '" + options_.role +
                      "' are different environments: one answers turns without calls "
                      "(user_turns), the other does not")
          .with("replica", infos.front().name)
          .with("other", info.name);
  }

  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < infos.size(); ++i)
    places_.set_room(i, infos[i].episodes);
  info_ = sum;
  return sum;
}

Future<OpenedEpisode> RemoteEnvironment::Impl::open(OpenEpisode request) {
  Opening opening{
      .request = std::move(request), .promise = {}, .deadline = Deadline::after(options_.patience)};
  Future<OpenedEpisode> opened = opening.promise.future();
  // Replicas that are back are found out about here, too: nobody waits while another has room.
  ask_lost();
  begin(std::move(opening));
  return opened;
}

void RemoteEnvironment::Impl::begin(Opening opening) {
  Promise<OpenedEpisode> promise = opening.promise;
  promise.on_cancel([promise]() mutable { promise.set_error(cancelled()); });
  std::optional<Place> place;
  try {
    const std::lock_guard lock(mutex_);
    RETORT_CHECK(info_) << "open() before info()";
    if (stopped_) std::rethrow_exception(cancelled());
    place = places_.begin(opening.request.episode);
    if (!place && places_.all_lost() && links_ == nullptr) throw none_came();
    if (!place) {
      waiting_.push_back(std::move(opening));
      changed_.notify_all();
    }
  } catch (const Error&) {
    promise.set_error(std::current_exception());
    return;
  }
  if (place) send(std::move(opening), *place);
}

void RemoteEnvironment::Impl::send(Opening opening, Place place) {
  Promise<OpenedEpisode> promise = opening.promise;
  const auto sent = std::make_shared<Opening>(std::move(opening));
  call(
      place.replica, kEnvironmentOpen, sent->request,
      [this, sent, place](Outcome<OpenedEpisode> outcome) {
        opened(std::move(*sent), place, std::move(outcome));
      },
      cancelling(promise));
}

void RemoteEnvironment::Impl::opened(Opening opening, Place place, Outcome<OpenedEpisode> outcome) {
  const uint64_t episode = opening.request.episode;
  if (!outcome.error) {
    // Whoever cancelled it while it waited does not know that it was sent all the same.
    const bool wanted = opening.promise.set_value(std::move(*outcome.value));
    if (!wanted) ended(episode, place, ErrorCode::kCancelled);
    return;
  }

  // It began nowhere, or where it is lost: another replica may take it.
  const ErrorCode code = code_of(outcome.error);
  ended(episode, place, code);
  if (code == ErrorCode::kPeerLost || is_refusal(code))
    begin(std::move(opening));
  else
    opening.promise.set_error(outcome.error);
}

Future<EpisodeAnswer> RemoteEnvironment::Impl::step(const EpisodeTurn& turn) {
  const uint64_t episode = turn.episode;
  Place place;
  try {
    place = place_of(episode);
  } catch (const Error& error) {
    return failed<EpisodeAnswer>(error);
  }

  Promise<EpisodeAnswer> promise;
  Future<EpisodeAnswer> answer = promise.future();
  call(
      place.replica, kEnvironmentStep, turn,
      [this, promise, place, episode](Outcome<EpisodeAnswer> outcome) mutable {
        if (outcome.error) {
          ended(episode, place, code_of(outcome.error));
          outcome.error = for_caller(outcome.error);
        }
        promise.complete(std::move(outcome));
      },
      cancelling(promise));
  return answer;
}

Future<ClosedEpisode> RemoteEnvironment::Impl::close(const CloseEpisode& request) {
  const uint64_t episode = request.episode;
  Place place;
  try {
    place = place_of(episode);
  } catch (const Error& error) {
    return failed<ClosedEpisode>(error);
  }

  Promise<ClosedEpisode> promise;
  Future<ClosedEpisode> end = promise.future();
  call(
      place.replica, kEnvironmentClose, request,
      [this, promise, place, episode](Outcome<ClosedEpisode> outcome) mutable {
        closed(episode, place, outcome);
        promise.complete(std::move(outcome));
      },
      cancelling(promise));
  return end;
}

void RemoteEnvironment::Impl::closed(uint64_t episode, Place place,
                                     Outcome<ClosedEpisode>& outcome) {
  {
    const std::lock_guard lock(mutex_);
    places_.end(episode, place);
    if (outcome.error && code_of(outcome.error) == ErrorCode::kPeerLost) places_.lose(place);
    tell_news();
  }
  if (outcome.error) {
    outcome.error = for_caller(outcome.error);
    return;
  }
  if (std::isfinite(outcome.value->reward.value_or(0))) return;
  outcome.value.reset();
  outcome.error = std::make_exception_ptr(
      Error(ErrorCode::kCorrupt, "environment.close: the reward is not finite")
          .with("peer", options_.replicas[place.replica]));
}

void RemoteEnvironment::Impl::ended(uint64_t episode, Place place, ErrorCode code) {
  {
    const std::lock_guard lock(mutex_);
    if (is_refusal(code))
      places_.refuse(episode, place);
    else
      places_.end(episode, place);
    if (code == ErrorCode::kPeerLost) places_.lose(place);
    tell_news();
    if (stopped_) return;
  }
  if (code == ErrorCode::kPeerLost || is_refusal(code)) return;
  // The failure may be this side's alone: then the replica would go on with the episode. Whether it
  // knows of it does not matter.
  call(place.replica, kEnvironmentClose, CloseEpisode{.episode = episode},
       [](const Outcome<ClosedEpisode>&) {});
}

Error RemoteEnvironment::Impl::none_came() const {
  if (places_.all_lost())
    return Error(ErrorCode::kPeerLost, "every replica of role '" + options_.role + "' is lost");
  return Error(ErrorCode::kResourceExhausted,
               "role '" + options_.role + "' had no room for one more episode for " +
                   std::to_string(options_.patience.count()) +
                   " ms; raise `episodes` of its environment, or world.dp");
}

void RemoteEnvironment::Impl::tell_news() {
  news_ = true;
  changed_.notify_all();
}

Place RemoteEnvironment::Impl::place_of(uint64_t episode) {
  const std::lock_guard lock(mutex_);
  if (stopped_) std::rethrow_exception(cancelled());
  return places_.at(episode);
}

void RemoteEnvironment::Impl::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
    if (stopped_) return;
    lock.unlock();
    look();
    lock.lock();
    changed_.wait_for(lock, kBetweenLooks, [&] { return stopped_ || news_; });
  }
}

void RemoteEnvironment::Impl::look() {
  ask_lost();
  std::deque<Opening> waiting;
  std::exception_ptr none;
  {
    const std::lock_guard lock(mutex_);
    news_ = false;
    none = std::make_exception_ptr(none_came());
    waiting.swap(waiting_);
  }
  for (Opening& opening : waiting) {
    if (opening.deadline.expired())
      opening.promise.set_error(none);
    else
      begin(std::move(opening));
  }
}

void RemoteEnvironment::Impl::ask_lost() {
  std::vector<size_t> back;
  {
    const std::lock_guard lock(mutex_);
    if (links_ == nullptr || stopped_) return;
    for (size_t i = 0; i < places_.size(); ++i)
      if (places_.is_lost(i) && links_->up(places_.name(i)) && asked_.insert(i).second)
        back.push_back(i);
  }
  for (const size_t i : back)
    call(i, kEnvironmentInfo, Empty{},
         [this, i](const Outcome<EnvironmentInfo>& outcome) { heard(i, outcome); });
}

void RemoteEnvironment::Impl::heard(size_t replica, const Outcome<EnvironmentInfo>& outcome) {
  const std::lock_guard lock(mutex_);
  // One that came back as another environment is not asked again: it will not become the right one.
  if (!outcome.error && outcome.value->user_turns != info_->user_turns) {
    RETORT_LOG(kWarning) << places_.name(replica)
                         << " came back as another environment (user_turns) and gets no episodes";
    return;
  }
  asked_.erase(replica);
  if (outcome.error) return;
  RETORT_LOG(kInfo) << places_.name(replica) << " answers again";
  places_.set_room(replica, outcome.value->episodes);
  tell_news();
}

void RemoteEnvironment::Impl::stop() {
  std::deque<Opening> waiting;
  std::vector<std::function<void()>> cancels;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    waiting.swap(waiting_);
    for (const auto& [number, cancel] : cancels_)
      cancels.push_back(cancel);
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(end_mutex_);
    if (thread_.joinable()) thread_.join();
  }
  for (Opening& opening : waiting)
    opening.promise.set_error(cancelled());
  for (const auto& cancel : cancels)
    cancel();
}

RemoteEnvironment::RemoteEnvironment(Options options)
    : impl_(std::make_shared<Impl>(std::move(options))) {}
RemoteEnvironment::~RemoteEnvironment() { impl_->stop(); }

void RemoteEnvironment::attach(rpc::Agent& agent, rpc::PeerLinks* links) {
  impl_->attach(agent, links);
}
EnvironmentInfo RemoteEnvironment::info() { return impl_->info(); }
Future<OpenedEpisode> RemoteEnvironment::open(OpenEpisode request) {
  return impl_->open(std::move(request));
}
Future<EpisodeAnswer> RemoteEnvironment::step(EpisodeTurn turn) { return impl_->step(turn); }
Future<ClosedEpisode> RemoteEnvironment::close(CloseEpisode request) {
  return impl_->close(request);
}
void RemoteEnvironment::stop() { impl_->stop(); }

}  // namespace retort::roles
