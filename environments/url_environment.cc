#include "environments/url_environment.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/future_combinators.h"

namespace retort::environments {

using detail::Verb;

namespace {

constexpr Duration kAskAgain = std::chrono::milliseconds(500);  // a service that is not there yet

http::ClientOptions client_options(const EnvironmentOptions& options) {
  const int64_t most = std::numeric_limits<int>::max();
  // A connection that is kept may be closed by the other side just when a call is sent, which then
  // cannot be sent again.
  return {.max_inflight = static_cast<int>(std::min(options.episodes, most)),
          .keep_idle = Duration(0),
          .ca_file = options.ca_file,
          .api_key = read_api_key(options)};
}

// From 1, and exact as a double.
uint64_t random_number() {
  std::random_device device;
  const uint64_t bits = (uint64_t{device()} << 32) | device();
  return std::max<uint64_t>(bits >> 11, 1);
}

// Tells whether the service itself says that it failed: it is there, and may answer other calls. By
// 502 to 504 somebody else says that it is not.
bool is_own_failure(const Error& error) {
  return std::any_of(
      error.context().begin(), error.context().end(),
      [](const auto& pair) { return pair.first == "status" && pair.second == "500"; });
}

}  // namespace

// The episodes that are open, and the call that each waits for.
class UrlEnvironment::Calls {
 public:
  Calls(std::string name, int64_t episodes) : name_(std::move(name)), max_episodes_(episodes) {}

  struct Call {
    uint64_t number = 0;  // the episode's on the wire
    uint64_t id = 0;      // the call's
  };
  Call begin(Verb verb, uint64_t caller) {
    std::function<void()> cancel;
    Call call;
    {
      const std::lock_guard lock(mutex_);
      check_running();
      const auto at = verb == Verb::kOpen ? place_for(caller) : open_one(caller, verb);
      // Whoever closes does not want what it asked before.
      cancel = std::exchange(at->second.cancel, nullptr);
      at->second.call = ++last_call_;
      call = {at->second.number, last_call_};
    }
    if (cancel) cancel();
    return call;
  }

  // How to cancel what waits for the call; at once if it was stopped meanwhile.
  void set_cancel(uint64_t caller, const Call& call, std::function<void()> cancel) {
    {
      const std::lock_guard lock(mutex_);
      const auto at = episodes_.find(caller);
      const bool waits = at != episodes_.end() && at->second.call == call.id;
      if (!waits) return;  // it is answered already
      if (!is_stopped_) {
        at->second.cancel = std::move(cancel);
        return;
      }
    }
    cancel();
  }

  // The call is answered, and so is the episode's end if `over`. False if another took its place.
  bool finish(uint64_t caller, const Call& call, bool over) {
    const std::lock_guard lock(mutex_);
    const auto at = episodes_.find(caller);
    if (at == episodes_.end() || at->second.call != call.id) return false;
    at->second.cancel = nullptr;
    at->second.call = 0;
    if (over) episodes_.erase(at);
    return true;
  }

  void set_hello_cancel(std::function<void()> cancel) {
    const std::lock_guard lock(mutex_);
    check_running();
    hello_cancel_ = std::move(cancel);
  }

  void stop() {
    std::vector<std::function<void()>> cancels;
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
      if (hello_cancel_) cancels.push_back(std::exchange(hello_cancel_, nullptr));
      for (auto& [caller, episode] : episodes_)
        if (episode.cancel) cancels.push_back(std::exchange(episode.cancel, nullptr));
    }
    for (const auto& cancel : cancels)
      cancel();
  }
  bool is_stopped() const {
    const std::lock_guard lock(mutex_);
    return is_stopped_;
  }

 private:
  struct Episode {
    uint64_t number = 0;
    uint64_t call = 0;  // that waits; 0: none
    std::function<void()> cancel;
  };
  using Episodes = std::map<uint64_t, Episode>;

  void check_running() const {
    if (is_stopped_)
      throw Error(ErrorCode::kCancelled, name_ + ": the environment was stopped");
  }
  Episodes::iterator place_for(uint64_t caller) {
    const std::string episode = name_ + ": episode " + std::to_string(caller);
    if (episodes_.count(caller) != 0)
      throw Error(ErrorCode::kInvalidArgument, episode + " is open already");
    if (static_cast<int64_t>(episodes_.size()) >= max_episodes_)
      throw Error(ErrorCode::kResourceExhausted,
                  name_ + ": all of its " + std::to_string(max_episodes_) +
                      " episodes are open (roles.<name>.environment.episodes)");
    return episodes_.emplace(caller, Episode{random_number(), 0, nullptr}).first;
  }
  Episodes::iterator open_one(uint64_t caller, Verb verb) {
    const std::string episode = name_ + ": episode " + std::to_string(caller);
    const auto at = episodes_.find(caller);
    if (at == episodes_.end())
      throw Error(ErrorCode::kInvalidArgument, episode + " is not open");
    if (at->second.call != 0 && verb != Verb::kClose)
      throw Error(ErrorCode::kInvalidArgument,
                  episode + " waits for an answer; it has one call at a time");
    return at;
  }

  const std::string name_;
  const int64_t max_episodes_;
  mutable std::mutex mutex_;
  Episodes episodes_;  // by the callers' numbers
  uint64_t last_call_ = 0;
  std::function<void()> hello_cancel_;
  bool is_stopped_ = false;
};

UrlEnvironment::UrlEnvironment(std::string name, const EnvironmentOptions& options,
                               Duration timeout)
    : name_(std::move(name)),
      options_(options),
      timeout_(timeout),
      url_(http::parse_url(options.url)),
      calls_(std::make_unique<Calls>(name_, options.episodes)),
      client_(client_options(options)) {}

UrlEnvironment::~UrlEnvironment() { calls_->stop(); }

void UrlEnvironment::stop() { calls_->stop(); }

http::Request UrlEnvironment::request(std::string line, Duration timeout) const {
  http::Request request{.url = url_, .expected_type = ""};
  request.body.push_back(http::piece_of(std::move(line)));
  request.limits = {.attempt = timeout, .idle = timeout, .body_bytes = detail::kMaxLineBytes};
  request.limits.body_advice = "an answer of an environment has no more";
  request.patience.total = timeout;
  return request;
}

roles::EnvironmentInfo UrlEnvironment::info() {
  const std::lock_guard lock(info_mutex_);
  const Deadline deadline = Deadline::after(options_.start_timeout);
  while (!info_) {
    try {
      Future<http::Response> answer = client_.send(
          request(detail::hello_line(options_.episodes), options_.start_timeout), deadline);
      calls_->set_hello_cancel(answer.canceller());
      const http::Response response = answer.get();
      try {
        const detail::Hello hello = detail::read_hello(response.body);
        info_ = roles::EnvironmentInfo{name_, hello.user_turns, options_.episodes};
      } catch (const Error& error) {
        throw told(error.code(),
                   "the answer " + error.message() + ": " + detail::quoted_line(response.body));
      }
    } catch (const Error& error) {
      // It may have to be started yet.
      const bool later = error.code() == ErrorCode::kUnavailable && !calls_->is_stopped() &&
                         deadline.remaining() > kAskAgain;
      if (!later) throw explained(error);
      std::this_thread::sleep_for(kAskAgain);
    }
  }
  return *info_;
}

Future<roles::OpenedEpisode> UrlEnvironment::open(roles::OpenEpisode request) {
  return ask<roles::OpenedEpisode>(Verb::kOpen, request.episode, [&](uint64_t number) {
    return detail::open_line(number, request);
  });
}

Future<roles::EpisodeAnswer> UrlEnvironment::step(roles::EpisodeTurn turn) {
  return ask<roles::EpisodeAnswer>(Verb::kStep, turn.episode, [&](uint64_t number) {
    return detail::step_line(number, turn);
  });
}

Future<roles::ClosedEpisode> UrlEnvironment::close(roles::CloseEpisode request) {
  return ask<roles::ClosedEpisode>(Verb::kClose, request.episode,
                                   [](uint64_t number) { return detail::close_line(number); });
}

template <class T>
Future<T> UrlEnvironment::ask(Verb verb, uint64_t caller, const MakeLine& make_line) {
  return try_future([&] {
    const Calls::Call call = calls_->begin(verb, caller);
    std::string line;
    try {
      line = make_line(call.number);
    } catch (const Error& error) {
      calls_->finish(caller, call, true);
      if (verb == Verb::kStep) close_given_up(call.number);
      throw Error(error.code(), name_ + ": " + error.message());
    }

    Future<http::Response> answer =
        client_.send(request(std::move(line), timeout_), Deadline::after(timeout_));
    std::function<void()> cancel = answer.canceller();
    const auto finish = [this, verb, caller, call](Outcome<http::Response> outcome) {
      try {
        if (outcome.error) std::rethrow_exception(outcome.error);
        T reply = std::get<T>(read(verb, call.number, *outcome.value));
        calls_->finish(caller, call, verb == Verb::kClose);
        return reply;
      } catch (const Error& error) {
        // The service's own words end an episode there; after any other error it may be open.
        const bool ours = calls_->finish(caller, call, true);
        const bool refused = error.code() == ErrorCode::kInvalidArgument;
        if (ours && !refused && verb != Verb::kClose) close_given_up(call.number);
        throw explained(error);
      }
    };
    Future<T> result = then_outcome(std::move(answer), finish);
    calls_->set_cancel(caller, call, std::move(cancel));
    return result;
  });
}

detail::Reply UrlEnvironment::read(Verb verb, uint64_t number,
                                   const http::Response& answer) const {
  const std::string shown = ": " + detail::quoted_line(answer.body);
  const std::string what = "\"" + std::string(detail::to_string(verb)) + "\" of episode " +
                           std::to_string(number);
  detail::AnswerLine line;
  try {
    line = detail::read_answer(answer.body);
  } catch (const Error& error) {
    const std::string why = error.message() + "; expected a JSON object";
    throw told(error.code(), "the answer to " + what + " " + why + shown);
  }

  if (line.verb != verb || line.number != number)
    throw told(ErrorCode::kCorrupt, "the answer to " + what + " is one to another call" + shown);
  if (line.refused)
    throw told(ErrorCode::kInvalidArgument,
               "episode " + std::to_string(number) + ": " + line.words);
  if (!line.wrong.empty())
    throw told(ErrorCode::kCorrupt, "the answer to " + what + " is none: " + line.wrong + shown);
  return std::move(line.reply);
}

// The service may forget it; nobody waits for its answer.
void UrlEnvironment::close_given_up(uint64_t number) {
  if (calls_->is_stopped()) return;
  client_.send(request(detail::close_line(number), timeout_), Deadline::after(timeout_));
}

Error UrlEnvironment::told(ErrorCode code, const std::string& what) const {
  return Error(code, name_ + ": " + url_.shown() + ": " + what);
}

// An error of the client as one of an environment.
Error UrlEnvironment::explained(const Error& error) const {
  if (error.message().starts_with(name_ + ": ")) return error;
  ErrorCode code = error.code();
  if (calls_->is_stopped()) code = ErrorCode::kCancelled;
  if (code == ErrorCode::kUnavailable)
    code = is_own_failure(error) ? ErrorCode::kRemote : ErrorCode::kPeerLost;
  if (code == ErrorCode::kMismatch) code = ErrorCode::kInvalidArgument;  // a status 4xx
  // Of an answer that is too long. An episode would wait for room by this code, and ask again.
  if (code == ErrorCode::kResourceExhausted) code = ErrorCode::kCorrupt;
  return told(code, error.message());
}

}  // namespace retort::environments
