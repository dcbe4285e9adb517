#include "roles/episodes/episode_backend.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "roles/generator/requests.h"

namespace retort::roles {
namespace {

bool has_no_room(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.code() == ErrorCode::kResourceExhausted;
  } catch (...) {
    return false;
  }
}

// A call that cannot be made is one that has failed already.
template <class Call>
auto called(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    Promise<decltype(call().get())> promise;
    promise.set_error(std::current_exception());
    return promise.future();
  }
}

}  // namespace

EpisodeBackend::EpisodeBackend(std::unique_ptr<SampleBackend> inner,
                               std::shared_ptr<Environment> environment, models::ChatTemplate chat,
                               models::Tokenizer tokenizer, EpisodeOptions options)
    : inner_(std::move(inner)),
      environment_(std::move(environment)),
      words_{chat, tokenizer, models::TurnSuffix(chat, tokenizer)},
      options_(options),
      positions_(inner_->info().max_position_embeddings) {
  options_.validate();
  RETORT_CHECK(inner_->leads() && environment_) << "episodes are the first rank's";
}

EpisodeBackend::~EpisodeBackend() {
  for (auto& [place, running] : running_)
    if (running.cancel_call) running.cancel_call();
}

void EpisodeBackend::stop() {
  environment_->stop();
  inner_->stop();
}

const EnvironmentInfo& EpisodeBackend::environment_info() {
  if (environment_info_) return *environment_info_;
  try {
    environment_info_ = environment_->info();
  } catch (const Error& error) {
    // A timeout or a loss of this backend's own would end the generator, which is well.
    throw Error(ErrorCode::kUnavailable,
                std::string("the environment is not ready: ") + error.what());
  }
  return *environment_info_;
}

uint64_t EpisodeBackend::submit(const GenerateRequest& request) {
  if (!request.episodes.empty()) return submit_episodes(request);
  const uint64_t passed = inner_->submit(request);
  passed_[passed] = {.number = ++last_request_, .unfinished = request.sample_ids.numel()};
  return last_request_;
}

uint64_t EpisodeBackend::submit_episodes(const GenerateRequest& request) {
  check_request(request);
  if (!request.draw.stop.empty() || !request.draw.stop_token_ids.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "generator.submit: stop texts with episodes; a turn ends at the template's end "
                "token");
  const EnvironmentInfo& info = environment_info();

  // Rows are read before anything is begun, so that one that cannot be leaves nothing behind.
  const uint64_t number = last_request_ + 1;
  const auto work =
      works_
          .emplace(number, Work{.setting = {.words = &words_,
                                            .options = &options_,
                                            .draw = request.draw,
                                            .weight_version = inner_->weight_version(),
                                            .positions = positions_,
                                            .answers_turns = info.user_turns,
                                            .environment = info.name},
                                .step = request.step,
                                .num_generations = request.num_generations,
                                .unfinished = request.sample_ids.numel()})
          .first;
  const at::Tensor ids = request.sample_ids.contiguous();
  std::vector<Running> all;
  try {
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const auto prompt = static_cast<size_t>(i / request.num_generations);
      all.push_back({.episode = Episode(work->second.setting, request.episodes[prompt]),
                     .sample_id = static_cast<uint64_t>(ids.const_data_ptr<int64_t>()[i])});
    }
  } catch (...) {
    works_.erase(work);
    throw;
  }

  last_request_ = number;
  for (size_t i = 0; i < all.size(); ++i) {
    const Place place{number, static_cast<int64_t>(i)};
    running_.emplace(place, std::move(all[i]));
    waiting_.push_back(place);
  }
  return number;
}

bool EpisodeBackend::step() {
  take_answers();
  expire();
  open_waiting();
  draw_first_turns();

  const bool stepped = inner_->step();
  take_drawn();
  if (stepped) return true;
  if (!turns_.empty() || !passed_.empty())
    throw Error(ErrorCode::kUnavailable, "the engine is idle, but has not finished its requests")
        .with("unfinished", turns_.size() + passed_.size());
  if (running_.empty()) return !finished_.empty();

  // Every episode waits for its environment. The other ranks of the replica hear of it, so that
  // they do not wait beyond the timeout of their group.
  if (finished_.empty()) {
    inner_->idle();
    wait_for_answers();
  }
  return true;
}

void EpisodeBackend::wait_for_answers() {
  std::unique_lock lock(inbox_->mutex);
  inbox_->arrived.wait_for(lock, kStepWait, [&] { return !inbox_->answers.empty(); });
}

void EpisodeBackend::take_answers() {
  std::vector<Answer> answers;
  {
    const std::lock_guard lock(inbox_->mutex);
    answers.swap(inbox_->answers);
  }
  for (Answer& answer : answers)
    take(std::move(answer));
}

// Answers to calls that nobody waits for any more come late, and change nothing.
void EpisodeBackend::take(Answer answer) {
  unheard_.erase(answer.call);
  const auto found = calls_.find(answer.call);
  if (found == calls_.end()) return;
  const Place place = found->second;
  calls_.erase(found);
  Running& running = running_.at(place);
  running.call = 0;
  running.cancel_call = nullptr;
  running.waited += Clock::now() - running.asked;

  try {
    if (!take_outcome(running, answer)) return waiting_.push_back(place);
  } catch (const Error& error) {
    // A row that makes no prompt makes none the next time either.
    const bool of_the_row = error.code() == ErrorCode::kInvalidArgument &&
                            running.episode.next() == Episode::Next::kOpen &&
                            std::get_if<Outcome<OpenedEpisode>>(&answer.outcome)->error == nullptr;
    if (of_the_row) return fail_request(place.first, std::current_exception());
    return lose(place, running, error);
  } catch (const std::exception& error) {
    return lose(place, running, Error(ErrorCode::kRemote, error.what()));
  }
  go_on(place);
}

// Throws what the environment has failed with. False when it had no room: that is no failure of the
// episode's, which waits once more.
bool EpisodeBackend::take_outcome(Running& running, Answer& answer) {
  if (auto* opened = std::get_if<Outcome<OpenedEpisode>>(&answer.outcome)) {
    if (opened->error && has_no_room(opened->error) && running.waited < options_.episode_timeout) {
      running.number = 0;
      running.open_after = Clock::now() + kRoomWait;
      return false;
    }
    if (opened->error) std::rethrow_exception(opened->error);
    running.episode.opened(*opened->value);
  } else if (auto* answered = std::get_if<Outcome<EpisodeAnswer>>(&answer.outcome)) {
    if (answered->error) std::rethrow_exception(answered->error);
    running.episode.answered(*answered->value);
  } else {
    auto& closed = std::get<Outcome<ClosedEpisode>>(answer.outcome);
    running.number = 0;
    if (closed.error) std::rethrow_exception(closed.error);
    running.episode.closed(*closed.value);
  }
  return true;
}

// Gives up calls that took too long, and stops counting episodes whose end nobody has heard of.
void EpisodeBackend::expire() {
  std::vector<Place> late;
  for (const auto& [place, running] : running_)
    if (running.call != 0 && running.deadline.expired()) late.push_back(place);
  for (const Place& place : late) {
    const auto found = running_.find(place);
    if (found == running_.end()) continue;
    Running& running = found->second;
    running.waited += Clock::now() - running.asked;
    lose(place, running,
         Error(ErrorCode::kTimeout,
               running.waited >= options_.episode_timeout
                   ? "its environment took longer than environment.episode_timeout, " +
                         format_duration(options_.episode_timeout)
                   : "its environment did not answer within environment.timeout, " +
                         format_duration(options_.timeout)));
  }
  std::erase_if(unheard_, [](const auto& one) { return one.second.expired(); });
}

// Counts the episodes that the environment has, as far as this side can know.
int64_t EpisodeBackend::num_open() const {
  const auto open = std::count_if(running_.begin(), running_.end(),
                                  [](const auto& one) { return one.second.number != 0; });
  return static_cast<int64_t>(open) + static_cast<int64_t>(unheard_.size());
}

void EpisodeBackend::open_waiting() {
  const auto over = paused_.upper_bound(Clock::now());
  for (auto paused = paused_.begin(); paused != over; ++paused)
    waiting_.push_back(paused->second);
  paused_.erase(paused_.begin(), over);
  if (waiting_.empty()) return;
  const int64_t most = std::max<int64_t>(1, environment_info_->episodes);
  for (int64_t room = most - num_open(); room > 0; --room) {
    while (!waiting_.empty() && !running_.contains(waiting_.front()))
      waiting_.pop_front();  // it was given up
    if (waiting_.empty()) return;
    const Place place = waiting_.front();
    Running& running = running_.at(place);
    if (running.open_after > Clock::now()) return;
    waiting_.pop_front();
    open(place, running);
  }
}

void EpisodeBackend::open(const Place& place, Running& running) {
  running.number = ++last_episode_;
  wait_for(place, running,
           called([&] { return environment_->open(running.episode.to_open(running.number)); }));
}

// Does what is to be done next for an episode that is open.
void EpisodeBackend::go_on(const Place& place) {
  Running& running = running_.at(place);
  switch (running.episode.next()) {
    case Episode::Next::kOpen: waiting_.push_back(place); break;
    case Episode::Next::kDraw:
      if (running.episode.continues() > 0) return draw({place});
      running.opened = Clock::now();
      first_.insert(place);
      break;
    case Episode::Next::kStep:
      wait_for(place, running,
               called([&] { return environment_->step(running.episode.to_step(running.number)); }));
      break;
    case Episode::Next::kClose:
      wait_for(place, running,
               called([&] { return environment_->close({.episode = running.number}); }));
      break;
    case Episode::Next::kEnd: end(place, running); break;
  }
}

template <class T>
void EpisodeBackend::wait_for(const Place& place, Running& running, Future<T> answer) {
  const uint64_t call = ++last_call_;
  calls_[call] = place;
  running.call = call;
  running.asked = Clock::now();

  // An open may wait until the environment has room; the other calls are answered at once, or not.
  const auto left = std::max(options_.episode_timeout - running.waited, Clock::duration::zero());
  const bool opens = running.episode.next() == Episode::Next::kOpen;
  running.deadline = Deadline(
      running.asked + (opens ? left : std::min<Clock::duration>(left, options_.patience())));
  running.cancel_call = answer.canceller();
  answer.on_outcome([inbox = inbox_, call](Outcome<T> outcome) {
    {
      const std::lock_guard lock(inbox->mutex);
      inbox->answers.push_back({call, std::move(outcome)});
    }
    inbox->arrived.notify_one();
  });
}

// Returns which completions of its request are of the same prompt: from the first up to the second.
std::pair<int64_t, int64_t> EpisodeBackend::group_of(const Place& place) const {
  const int64_t generations = works_.at(place.first).num_generations;
  const int64_t first = place.second / generations * generations;
  return {first, first + generations};
}

// Tells whether an episode of the same prompt is about to be open.
bool EpisodeBackend::waits_for_others(const Place& place) const {
  const auto [first, end] = group_of(place);
  const auto opens = [](const auto& one) {
    return one.second.call != 0 && one.second.episode.next() == Episode::Next::kOpen;
  };
  return std::any_of(running_.lower_bound({place.first, first}),
                     running_.lower_bound({place.first, end}), opens);
}

// Episodes of one prompt begin alike, and the engine computes that once for those that begin
// together. So they wait for each other, for a moment.
void EpisodeBackend::draw_first_turns() {
  std::vector<std::vector<Place>> due;
  for (auto next = first_.begin(); next != first_.end();) {
    const Place begin = *next;
    const Place end{begin.first, group_of(begin).second};
    const auto last = first_.lower_bound(end);
    const bool waited_enough = std::any_of(next, last, [&](const Place& place) {
      return Clock::now() - running_.at(place).opened >= kGroupWait;
    });
    if (waited_enough || !waits_for_others(begin)) due.emplace_back(next, last);
    next = last;
  }
  for (std::vector<Place>& group : due)
    draw_together(std::move(group));
}

// An environment need not say the same to all of them.
void EpisodeBackend::draw_together(std::vector<Place> group) {
  const uint64_t request = group.front().first;
  while (!group.empty() && works_.contains(request)) {
    const std::vector<int32_t>& ids = running_.at(group.front()).episode.ids();
    const auto others = std::stable_partition(group.begin(), group.end(), [&](const Place& place) {
      return running_.at(place).episode.ids() == ids;
    });
    std::vector<Place> alike(group.begin(), others);
    group.erase(group.begin(), others);
    for (const Place& place : alike)
      first_.erase(place);
    draw(std::move(alike));  // if the engine refuses it, the whole request is gone
  }
}

// Asks the engine for a turn of each of these, which have the same tokens so far.
void EpisodeBackend::draw(std::vector<Place> places) {
  const uint64_t request = places.front().first;
  const Episode& episode = running_.at(places.front()).episode;
  std::vector<int64_t> sample_ids;
  for (const Place& place : places)
    sample_ids.push_back(static_cast<int64_t>(running_.at(place).sample_id));
  const GenerateRequest turn = episode.to_draw(request, works_.at(request).step, sample_ids);

  // The turn has the inner backend's number, by which its completions come back.
  try {
    const uint64_t number = inner_->submit(turn);
    for (const Place& place : places)
      running_.at(place).turn = number;
    const auto unfinished = static_cast<int64_t>(places.size());
    turns_[number] = {.places = std::move(places), .unfinished = unfinished};
  } catch (const Error& error) {
    // These say that the engine is of no use any more; others that it does not take this request.
    if (error.code() == ErrorCode::kCollective || error.code() == ErrorCode::kTimeout) throw;
    fail_request(request, std::current_exception());
  }
}

void EpisodeBackend::take_drawn() {
  for (FinishedSample& sample : inner_->finished()) {
    if (turns_.contains(sample.request)) {
      take_turn(std::move(sample));
    } else if (const auto passed = passed_.find(sample.request); passed != passed_.end()) {
      const bool last = sample.error != nullptr || --passed->second.unfinished == 0;
      sample.request = passed->second.number;
      finished_.push_back(std::move(sample));
      if (last) passed_.erase(passed);
    }
  }
}

void EpisodeBackend::take_turn(FinishedSample sample) {
  const auto drawing = turns_.find(sample.request);
  if (sample.error) {
    const uint64_t request = drawing->second.places.front().first;
    turns_.erase(drawing);
    return fail_request(request, sample.error);
  }
  const Place place = drawing->second.places.at(static_cast<size_t>(sample.index));
  if (--drawing->second.unfinished == 0) turns_.erase(drawing);
  Running& running = running_.at(place);
  running.turn = 0;
  if (const auto reused = sample.completion.reused_tokens) {
    const int64_t history = running.episode.history_tokens();
    history_tokens_ += history;
    cached_tokens_ += std::min(*reused, history);  // what is behind the history is new
  }
  running.episode.drawn(sample.completion);
  go_on(place);
}

void EpisodeBackend::end(const Place& place, Running& running) {
  finished_.push_back(
      {.request = place.first, .index = place.second, .completion = running.episode.take()});
  running_.erase(place);
  const auto work = works_.find(place.first);
  if (--work->second.unfinished == 0) works_.erase(work);
}

// The environment has failed the episode: it begins anew, or ends without a reward. What one says
// no to in words of its own, or what cannot go on from what it says, would end so again.
void EpisodeBackend::lose(const Place& place, Running& running, const Error& error) {
  const bool refused =
      error.code() == ErrorCode::kInvalidArgument && running.episode.next() != Episode::Next::kStep;
  const bool again = !refused && error.code() != ErrorCode::kMismatch;
  leave(running);
  running.waited = {};
  running.episode.failed(error.what(), again);
  const bool ends = running.episode.next() == Episode::Next::kEnd;
  RETORT_LOG(kWarning) << "an episode of sample " << running.sample_id
                       << (ends ? " has no reward: " : " begins anew: ") << error.what();
  // A replica that is lost is away anyway, and others may have room.
  if (ends || error.code() == ErrorCode::kPeerLost) return go_on(place);
  paused_.emplace(Clock::now() + pause_before(running.episode.restarts()), place);
}

// Nothing of this attempt comes any more, wherever it is.
void EpisodeBackend::leave(Running& running) {
  // Others of its prompt may have had the same turn, which is given up once.
  if (running.turn != 0 && turns_.erase(running.turn) > 0) inner_->cancel(running.turn);
  running.turn = 0;
  if (running.call != 0) {
    calls_.erase(std::exchange(running.call, 0));
    std::exchange(running.cancel_call, nullptr)();
  }
  if (running.number != 0) close_unheard(std::exchange(running.number, 0));
}

// Tells the environment that an episode is over, without waiting for what it says. An environment
// that has failed it may have forgotten it already.
void EpisodeBackend::close_unheard(uint64_t number) {
  const uint64_t call = ++last_call_;
  unheard_.emplace(call, Deadline::after(options_.patience()));
  called([&] {
    return environment_->close({.episode = number});
  }).on_outcome([inbox = inbox_, call](Outcome<ClosedEpisode> outcome) {
    const std::lock_guard lock(inbox->mutex);
    inbox->answers.push_back({call, std::move(outcome)});
  });
}

void EpisodeBackend::fail_request(uint64_t request, std::exception_ptr error) {
  give_up(request);
  finished_.push_back({.request = request, .error = std::move(error)});
}

void EpisodeBackend::give_up(uint64_t request) {
  const auto first = running_.lower_bound({request, 0}),
             last = running_.lower_bound({request + 1, 0});
  for (auto one = first; one != last; ++one)
    leave(one->second);
  running_.erase(first, last);
  first_.erase(first_.lower_bound({request, 0}), first_.lower_bound({request + 1, 0}));
  works_.erase(request);
  std::erase_if(finished_, [&](const auto& sample) { return sample.request == request; });
}

std::vector<FinishedSample> EpisodeBackend::finished() { return std::exchange(finished_, {}); }

void EpisodeBackend::cancel(uint64_t request) {
  const auto passed = std::find_if(passed_.begin(), passed_.end(),
                                   [&](const auto& one) { return one.second.number == request; });
  if (passed != passed_.end()) {
    inner_->cancel(passed->first);
    passed_.erase(passed);
  }
  give_up(request);
}

}  // namespace retort::roles
