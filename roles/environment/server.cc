#include "roles/environment/server.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace retort::roles {
namespace {

// What `ask` returns. What it throws instead of that becomes the future's error, so that there is
// one way on for both.
template <class Answer, class Ask>
Future<Answer> answer_of(const Ask& ask) {
  try {
    return ask();
  } catch (...) {
    Promise<Answer> failed;
    Future<Answer> answer = failed.future();
    failed.set_error(std::current_exception());
    return answer;
  }
}

// The message of an error that says that the environment has lost what it had; else nullopt.
std::optional<std::string> loss_of(const std::exception_ptr& error) {
  if (!error) return std::nullopt;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kPeerLost) return e.message();
  } catch (...) {
  }
  return std::nullopt;
}

// To a caller it is the episode that is lost: this process is there, and takes others.
std::exception_ptr as_told(const std::exception_ptr& error) {
  const std::optional<std::string> loss = loss_of(error);
  return loss ? std::make_exception_ptr(Error(ErrorCode::kUnavailable, *loss)) : error;
}

Error not_open(const std::string& caller, uint64_t episode) {
  return Error(ErrorCode::kUnavailable,
               "this episode is not open here: this process began after it, or the connection of "
               "its caller ended since, or it is closed")
      .with("caller", caller)
      .with("episode", episode);
}

}  // namespace

// The episodes that the environment has, and whose they are. Any thread; the environment and who
// waits for it are called without the lock.
class EnvironmentServer::Episodes : public std::enable_shared_from_this<Episodes> {
 public:
  explicit Episodes(std::shared_ptr<Environment> environment)
      : environment_(std::move(environment)) {}

  Environment& environment() const { return *environment_; }
  void set_limit(int64_t limit) { limit_ = limit; }

  // Each returns the number that the environment knows the episode by, which has a call in work
  // from then on; answered() ends that.
  uint64_t add(const std::string& caller, const std::string& process, uint64_t episode);
  uint64_t begin_step(const std::string& caller, uint64_t episode);

  // The answer to the call in work, on its way to the caller.
  template <class Answer>
  Future<Answer> pass_on(uint64_t number, const rpc::CallContext& caller, Future<Answer> answer) {
    Promise<Answer> promise;
    Future<Answer> passed = promise.future();
    answer.on_outcome([self = shared_from_this(), number, promise,
                       cancelled = caller.cancelled](Outcome<Answer> outcome) mutable {
      // The episode's state changes first: the caller may use it as soon as it has the answer.
      self->answered(number, outcome.error, cancelled->load());
      outcome.error = as_told(outcome.error);
      promise.complete(std::move(outcome));
    });
    return passed;
  }

  // Closes it at once, also where a step is in work, which then comes to nothing; where it is being
  // opened, behind that.
  Future<ClosedEpisode> close(const std::string& caller, uint64_t episode);
  // Closes those of callers for whom `gone(caller, process)` is true.
  template <class Gone>
  void forget(const Gone& gone) {
    std::vector<uint64_t> ending;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [number, episode] : episodes_)
        if (!episode.leaving && gone(episode.caller, episode.process)) {
          leave(number, episode);
          if (begins_to_end(episode)) ending.push_back(number);
        }
    }
    for (const uint64_t number : ending)
      end(number);
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return episodes_.size();
  }
  int64_t closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  void throw_if_lost() const {
    const std::lock_guard lock(mutex_);
    if (lost_) std::rethrow_exception(lost_);
  }

 private:
  struct Episode {
    std::string caller, process;
    uint64_t callers_number = 0;
    bool busy = false;                               // a call of it is in work
    bool opened = false;                             // the call that opens it is answered
    bool leaving = false;                            // its caller has no more to say
    bool ending = false;                             // the environment is asked to close it
    std::optional<Promise<ClosedEpisode>> closer{};  // who waits for its end
  };
  using ByCaller = std::map<std::pair<std::string, uint64_t>, uint64_t>;

  void answered(uint64_t number, const std::exception_ptr& error, bool given_up);
  // Asks the environment to close it, which is the last call of it.
  void end(uint64_t number);
  // With the lock held. The caller's number is free at once: another process of its name may use
  // it.
  void leave(uint64_t number, Episode& episode);
  // True once, and not before it is open: then end() must follow.
  static bool begins_to_end(Episode& episode) {
    return episode.opened && !std::exchange(episode.ending, true);
  }
  void note_opening(uint64_t number, const std::exception_ptr& error);

  const std::shared_ptr<Environment> environment_;
  int64_t limit_ = 0;
  mutable std::mutex mutex_;
  std::map<uint64_t, Episode> episodes_;  // by our number
  ByCaller by_caller_;                    // those that are not leaving
  uint64_t last_number_ = 0;
  int64_t closed_ = 0;
  int losses_ = 0;            // of episodes that were to open, in a row
  uint64_t last_in_row_ = 0;  // of our numbers, those up to this one count no more
  std::exception_ptr lost_;   // for good
};

uint64_t EnvironmentServer::Episodes::add(const std::string& caller, const std::string& process,
                                          uint64_t episode) {
  const std::lock_guard lock(mutex_);
  if (by_caller_.contains({caller, episode}))
    throw Error(ErrorCode::kInvalidArgument,
                "environment.open: the caller has an episode of this number open")
        .with("caller", caller)
        .with("episode", episode);
  if (static_cast<int64_t>(episodes_.size()) >= limit_)
    throw Error(ErrorCode::kResourceExhausted,
                "environment.open: all " + std::to_string(limit_) +
                    " episodes that the environment takes at once are open");
  const uint64_t number = ++last_number_;
  episodes_.emplace(
      number,
      Episode{.caller = caller, .process = process, .callers_number = episode, .busy = true});
  by_caller_.emplace(ByCaller::key_type{caller, episode}, number);
  return number;
}

uint64_t EnvironmentServer::Episodes::begin_step(const std::string& caller, uint64_t episode) {
  const std::lock_guard lock(mutex_);
  const auto found = by_caller_.find({caller, episode});
  if (found == by_caller_.end()) throw not_open(caller, episode);
  Episode& here = episodes_.at(found->second);
  if (here.busy)
    throw Error(ErrorCode::kInvalidArgument,
                "environment.step: the call before is not answered; an episode has one at a time")
        .with("caller", caller)
        .with("episode", episode);
  here.busy = true;
  return found->second;
}

Future<ClosedEpisode> EnvironmentServer::Episodes::close(const std::string& caller,
                                                         uint64_t episode) {
  Promise<ClosedEpisode> promise;
  Future<ClosedEpisode> closed = promise.future();
  std::optional<uint64_t> ending;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_caller_.find({caller, episode});
    if (found == by_caller_.end()) throw not_open(caller, episode);
    const uint64_t number = found->second;
    Episode& here = episodes_.at(number);
    here.closer = promise;
    leave(number, here);
    if (begins_to_end(here)) ending = number;
  }
  if (ending) end(*ending);
  return closed;
}

void EnvironmentServer::Episodes::answered(uint64_t number, const std::exception_ptr& error,
                                           bool given_up) {
  std::optional<Promise<ClosedEpisode>> closer;
  bool closes = false;
  {
    const std::lock_guard lock(mutex_);
    // A step of an episode that was closed meanwhile comes to nothing, before or after its end.
    const auto found = episodes_.find(number);
    if (found == episodes_.end() || found->second.ending) return;
    Episode& episode = found->second;
    episode.busy = false;
    if (!std::exchange(episode.opened, true)) note_opening(number, error);
    if (error) {
      // The environment keeps nothing of it.
      closer = std::move(episode.closer);
      leave(number, episode);
      episodes_.erase(found);
    } else {
      if (given_up) leave(number, episode);
      closes = episode.leaving && begins_to_end(episode);
    }
  }
  if (closer) closer->set_error(as_told(error));
  if (closes) end(number);
}

void EnvironmentServer::Episodes::leave(uint64_t number, Episode& episode) {
  episode.leaving = true;
  const auto found = by_caller_.find({episode.caller, episode.callers_number});
  if (found != by_caller_.end() && found->second == number) by_caller_.erase(found);
}

// Those that were asked for before the last loss are lost with it, and count as one.
void EnvironmentServer::Episodes::note_opening(uint64_t number, const std::exception_ptr& error) {
  const std::optional<std::string> loss = loss_of(error);
  if (!loss) {
    losses_ = 0;
    return;
  }
  if (number <= last_in_row_) return;
  last_in_row_ = last_number_;
  if (++losses_ == kMaxLosses)
    lost_ =
        std::make_exception_ptr(Error(ErrorCode::kPeerLost, "the environment is lost: " + *loss));
}

void EnvironmentServer::Episodes::end(uint64_t number) {
  answer_of<ClosedEpisode>([&] {
    return environment_->close({.episode = number});
  }).on_outcome([self = shared_from_this(), number](Outcome<ClosedEpisode> outcome) {
    std::optional<Promise<ClosedEpisode>> closer;
    {
      const std::lock_guard lock(self->mutex_);
      closer = std::move(self->episodes_.at(number).closer);
      self->episodes_.erase(number);
      if (!outcome.error) ++self->closed_;
    }
    outcome.error = as_told(outcome.error);
    if (closer) closer->complete(std::move(outcome));
  });
}

EnvironmentServer::EnvironmentServer(std::string name, std::shared_ptr<Environment> environment)
    : info_(environment->info()), episodes_(std::make_shared<Episodes>(std::move(environment))) {
  info_.name = std::move(name);
  episodes_->set_limit(info_.episodes);
}

// The calls in work hold the episodes, which hold the environment: it ends here all the same.
EnvironmentServer::~EnvironmentServer() { episodes_->environment().stop(); }

void EnvironmentServer::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent_ = &agent;
  agent.serve(kEnvironmentInfo, queue, [this](const Empty&, const rpc::CallContext&) {
    episodes_->throw_if_lost();
    return info_;
  });
  agent.serve(kEnvironmentOpen, queue, [this](OpenEpisode request, const rpc::CallContext& caller) {
    return open(std::move(request), caller);
  });
  agent.serve(kEnvironmentStep, queue, [this](EpisodeTurn turn, const rpc::CallContext& caller) {
    return step(std::move(turn), caller);
  });
  agent.serve(kEnvironmentClose, queue,
              [this](const CloseEpisode& request, const rpc::CallContext& caller) {
                return close(request, caller);
              });
}

Future<OpenedEpisode> EnvironmentServer::open(OpenEpisode request, const rpc::CallContext& caller) {
  episodes_->throw_if_lost();
  // A process that was replaced may be connected still, if nobody has noticed its end.
  episodes_->forget([&](const std::string& name, const std::string& process) {
    return name == caller.peer && process != caller.process;
  });
  request.episode = episodes_->add(caller.peer, caller.process, request.episode);
  const uint64_t number = request.episode;
  return episodes_->pass_on(number, caller, answer_of<OpenedEpisode>([&] {
                              return episodes_->environment().open(std::move(request));
                            }));
}

Future<EpisodeAnswer> EnvironmentServer::step(EpisodeTurn turn, const rpc::CallContext& caller) {
  episodes_->throw_if_lost();
  turn.episode = episodes_->begin_step(caller.peer, turn.episode);
  const uint64_t number = turn.episode;
  return episodes_->pass_on(number, caller, answer_of<EpisodeAnswer>([&] {
                              return episodes_->environment().step(std::move(turn));
                            }));
}

Future<ClosedEpisode> EnvironmentServer::close(const CloseEpisode& request,
                                               const rpc::CallContext& caller) {
  episodes_->throw_if_lost();
  return episodes_->close(caller.peer, request.episode);
}

bool EnvironmentServer::work() {
  // This process is the cause: it lost nobody but what it speaks for.
  try {
    episodes_->throw_if_lost();
  } catch (const Error& error) {
    throw Error(ErrorCode::kUnavailable, error.message());
  }
  const auto now = std::chrono::steady_clock::now();
  if (agent_ == nullptr || now < next_look_) return false;
  next_look_ = now + kLookEvery;

  const std::vector<std::string> connected = agent_->peers();
  episodes_->forget([&](const std::string& caller, const std::string&) {
    return std::find(connected.begin(), connected.end(), caller) == connected.end();
  });
  return false;
}

void EnvironmentServer::stop() { episodes_->environment().stop(); }

size_t EnvironmentServer::num_open() const { return episodes_->size(); }
int64_t EnvironmentServer::episodes_closed() const { return episodes_->closed(); }

Progress EnvironmentServer::progress() const {
  return {.count = episodes_closed(),
          .unit = "episodes closed",
          .state = ", " + std::to_string(num_open()) + " open"};
}

std::string EnvironmentServer::summary() const {
  return std::to_string(episodes_closed()) + " episodes closed";
}

}  // namespace retort::roles
