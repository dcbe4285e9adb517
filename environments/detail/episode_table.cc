#include "environments/detail/episode_table.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace retort::environments::detail {
namespace {

// A program may never answer what it gave up for a close. So many episodes of that kind are kept in
// mind, the last ones.
constexpr size_t kMaxOwed = 1000;

}  // namespace

void complete(Completions completions) {
  for (Completion& one : completions)
    one.promise.complete(std::move(one.outcome));
}

Completion failed_call(Promise<Reply> promise, const Error& error) {
  Completion failed{std::move(promise), {}};
  failed.outcome.error = std::make_exception_ptr(error);
  return failed;
}

EpisodeTable::EpisodeTable(std::string name, int64_t episodes)
    : name_(std::move(name)), max_episodes_(episodes) {}

uint64_t EpisodeTable::next_number(uint64_t caller) const {
  const auto known = numbers_.find(caller);
  // One that went with the program may be opened anew without asking what became of it.
  if (known != numbers_.end() && !episodes_.at(known->second).lost)
    throw Error(ErrorCode::kInvalidArgument,
                name_ + ": episode " + std::to_string(caller) + " is open already");

  const auto open = std::count_if(episodes_.begin(), episodes_.end(), [](const auto& entry) {
    return !entry.second.given_up && !entry.second.lost;
  });
  if (open >= max_episodes_)
    throw Error(ErrorCode::kResourceExhausted,
                name_ + ": all of its " + std::to_string(max_episodes_) +
                    " episodes are open (roles.<name>.environment.episodes)");
  return next_;
}

uint64_t EpisodeTable::number_of(uint64_t caller, Verb verb) {
  const auto known = numbers_.find(caller);
  if (known == numbers_.end())
    throw Error(ErrorCode::kInvalidArgument,
                name_ + ": episode " + std::to_string(caller) + " is not open");

  const auto at = episodes_.find(known->second);
  if (at->second.lost) {
    const Error error = *at->second.lost;
    forget(at);
    throw error;
  }
  if (at->second.waiting && verb != Verb::kClose)
    throw Error(ErrorCode::kInvalidArgument,
                name_ + ": episode " + std::to_string(caller) +
                    " waits for an answer; it has one call at a time");
  return at->first;
}

Future<Reply> EpisodeTable::wait(uint64_t caller, uint64_t number, Verb verb,
                                 std::optional<Duration> timeout, Completions& done) {
  if (verb == Verb::kOpen) {
    if (const auto old = numbers_.find(caller); old != numbers_.end())
      forget(episodes_.find(old->second));
    numbers_[caller] = number;
    next_ = number + 1;
  }
  Episode& episode = episodes_[number];
  episode.caller = caller;

  // Whoever closes does not want what it asked before.
  if (episode.waiting) {
    const Error error(ErrorCode::kCancelled, name_ + ": the episode was closed meanwhile");
    episode.ignored.push_back(episode.waiting->verb);
    done.push_back(failed_call(std::move(episode.waiting->promise), error));
  }

  Promise<Reply> promise;
  Future<Reply> future = promise.future();
  episode.waiting.emplace(Waiting{verb, std::move(promise), Clock::now(), std::nullopt});
  if (timeout) episode.waiting->deadline = Deadline::after(*timeout);
  return future;
}

void EpisodeTable::start_clocks(Duration timeout) {
  for (auto& [number, episode] : episodes_) {
    if (!episode.waiting) continue;
    episode.waiting->since = Clock::now();
    episode.waiting->deadline = Deadline::after(timeout);
  }
}

EpisodeTable::Taken EpisodeTable::take(AnswerLine line,
                                       const std::function<Error(ErrorCode, std::string)>& wrong,
                                       Completions& done) {
  Taken taken;
  const auto at = episodes_.find(line.number);
  if (at == episodes_.end()) {
    if (take_owed(line, taken)) return taken;
    throw wrong(ErrorCode::kCorrupt, place_of(line));
  }
  std::optional<Waiting>& waiting = at->second.waiting;
  if (!waiting || waiting->verb != line.verb) {
    if (take_ignored(at, line)) return taken;
    throw wrong(ErrorCode::kCorrupt, "\"" + std::string(to_string(line.verb)) +
                                         "\" answers what was not asked of episode " +
                                         std::to_string(line.number));
  }

  // Its own words end an episode on both sides.
  Promise<Reply> promise = std::move(waiting->promise);
  waiting.reset();
  if (line.refused) {
    forget_closed(at);
    const std::string who = name_ + ": episode " + std::to_string(line.number) + ": ";
    done.push_back(
        failed_call(std::move(promise), Error(ErrorCode::kInvalidArgument, who + line.words)));
    return taken;
  }
  if (!line.wrong.empty()) {
    const std::string what = "answers \"" + std::string(to_string(line.verb)) + "\" of episode " +
                             std::to_string(line.number) + ", but " + line.wrong;
    done.push_back(failed_call(std::move(promise), wrong(ErrorCode::kCorrupt, what)));
    // A close that is wrong was one for the program.
    if (line.verb == Verb::kClose)
      forget_closed(at);
    else
      taken.lines = give_up(at);
    return taken;
  }

  taken.opened = line.verb == Verb::kOpen;
  if (line.verb == Verb::kClose) forget_closed(at);
  Completion completion{std::move(promise), {}};
  completion.outcome.value.emplace(std::move(line.reply));
  done.push_back(std::move(completion));
  return taken;
}

// Whether it answers a call that nobody waits for any more.
bool EpisodeTable::take_ignored(Episodes::iterator at, const AnswerLine& line) {
  std::vector<Verb>& ignored = at->second.ignored;
  const auto found = std::find(ignored.begin(), ignored.end(), line.verb);
  if (found == ignored.end()) return false;
  ignored.erase(found);
  // Every close is answered, that of an episode that ended by its own error meanwhile, too.
  if (line.verb == Verb::kClose) forget_closed(at);
  return true;
}

// Whether it answers a call of an episode whose close was answered first.
bool EpisodeTable::take_owed(const AnswerLine& line, Taken& taken) {
  const auto at = owed_.find(line.number);
  if (at == owed_.end()) return false;
  std::vector<Verb>& verbs = at->second;
  const auto found = std::find(verbs.begin(), verbs.end(), line.verb);
  if (found == verbs.end()) return false;
  verbs.erase(found);
  // It was not open yet when it was closed, so it is open from now on.
  if (line.verb == Verb::kOpen && !line.refused) {
    verbs.push_back(Verb::kClose);
    taken.lines = close_line(line.number) + "\n";
  }
  if (verbs.empty()) owed_.erase(at);
  return true;
}

std::string EpisodeTable::place_of(const AnswerLine& line) const {
  const bool closed = line.number != 0 && line.number < next_;
  return "\"" + std::string(to_string(line.verb)) + "\" names episode " +
         std::to_string(line.number) + (closed ? ", which is closed" : ", which was never opened");
}

std::string EpisodeTable::expire(const std::function<Error(std::string)>& late, Completions& done,
                                 std::optional<Clock::time_point>& earliest_call) {
  std::string lines;
  for (auto at = episodes_.begin(); at != episodes_.end();) {
    const auto here = at++;
    std::optional<Waiting>& waiting = here->second.waiting;
    if (!waiting || !waiting->deadline || !waiting->deadline->expired()) continue;
    earliest_call = std::min(earliest_call.value_or(waiting->since), waiting->since);
    const std::string what = "\"" + std::string(to_string(waiting->verb)) + "\" of episode " +
                             std::to_string(here->first);
    done.push_back(failed_call(waiting->promise, late(what)));
    lines += give_up(here);
  }
  return lines;
}

std::optional<Deadline> EpisodeTable::next_deadline() const {
  std::optional<Deadline> next;
  for (const auto& [number, episode] : episodes_) {
    if (!episode.waiting || !episode.waiting->deadline) continue;
    const Deadline one = *episode.waiting->deadline;
    if (!next || one.time() < next->time()) next = one;
  }
  return next;
}

std::string EpisodeTable::give_up(uint64_t number) { return give_up(episodes_.find(number)); }

// The caller may use its number again; the program is asked to close, unless it is asked already.
std::string EpisodeTable::give_up(Episodes::iterator at) {
  Episode& episode = at->second;
  bool closes = false;
  if (episode.waiting) {
    closes = episode.waiting->verb == Verb::kClose;
    episode.ignored.push_back(episode.waiting->verb);
    episode.waiting.reset();
  }
  const auto known = numbers_.find(episode.caller);
  if (known != numbers_.end() && known->second == at->first) numbers_.erase(known);
  episode.given_up = true;
  if (closes) return "";
  episode.ignored.push_back(Verb::kClose);
  return close_line(at->first) + "\n";
}

void EpisodeTable::forget(Episodes::iterator at) {
  const auto known = numbers_.find(at->second.caller);
  if (known != numbers_.end() && known->second == at->first) numbers_.erase(known);
  episodes_.erase(at);
}

// The program has closed it, and may still answer what it was asked before.
void EpisodeTable::forget_closed(Episodes::iterator at) {
  if (!at->second.ignored.empty()) owed_[at->first] = std::move(at->second.ignored);
  if (owed_.size() > kMaxOwed) owed_.erase(owed_.begin());
  forget(at);
}

void EpisodeTable::lose(const Error& error, Completions& done) {
  owed_.clear();
  for (auto at = episodes_.begin(); at != episodes_.end();) {
    const auto here = at++;
    Episode& episode = here->second;
    if (episode.waiting) done.push_back(failed_call(std::move(episode.waiting->promise), error));
    if (episode.waiting || episode.given_up)
      forget(here);
    else if (!episode.lost)
      episode.lost = error;
  }
}

void EpisodeTable::end(const Error& error, Completions& done) {
  for (auto& [number, episode] : episodes_)
    if (episode.waiting) done.push_back(failed_call(std::move(episode.waiting->promise), error));
  episodes_.clear();
  numbers_.clear();
  owed_.clear();
}

bool EpisodeTable::has_waiting() const {
  return std::any_of(episodes_.begin(), episodes_.end(),
                     [](const auto& entry) { return entry.second.waiting.has_value(); });
}

int64_t EpisodeTable::num_given_up() const {
  return std::count_if(episodes_.begin(), episodes_.end(),
                       [](const auto& entry) { return entry.second.given_up; });
}

}  // namespace retort::environments::detail
