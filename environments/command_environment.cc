#include "environments/command_environment.h"

#include <unistd.h>

#include <utility>
#include <variant>
#include <vector>

#include "base/future_combinators.h"
#include "base/log.h"

namespace retort::environments {

using detail::Completions;
using detail::Verb;

namespace {

constexpr int64_t kMaxVainStarts = 3;
constexpr Duration kFirstPause = std::chrono::seconds(1);  // before a second start in vain
// Without a call that waits the thread looks at the program this often.
constexpr Duration kIdle = std::chrono::minutes(1);

Error stopped_error(const std::string& name) {
  return Error(ErrorCode::kCancelled, name + ": the environment was stopped");
}

}  // namespace

CommandEnvironment::CommandEnvironment(std::string name, const EnvironmentOptions& options,
                                       Duration timeout)
    : name_(std::move(name)),
      options_(options),
      timeout_(timeout),
      program_(std::make_unique<detail::Program>(name_, options.command)),
      start_deadline_(Deadline::after(options.start_timeout)),
      table_(name_, options.episodes) {
  program_->add(detail::hello_line(options_.episodes) + "\n");
  thread_ = std::thread([this] { work(); });
}

CommandEnvironment::~CommandEnvironment() {
  stop();
  thread_.join();
}

roles::EnvironmentInfo CommandEnvironment::info() {
  std::unique_lock lock(mutex_);
  // The thread has a deadline for the first line, and says when it has passed.
  changed_.wait(lock, [&] { return info_ || loss_ || is_stopped_; });
  if (info_) return *info_;
  if (is_stopped_) throw stopped_error(name_);
  throw *loss_;
}

template <class T>
Future<T> CommandEnvironment::ask(Verb verb, uint64_t caller, MakeLine make_line) {
  return try_future([&] { return add_call(verb, caller, make_line); })
      .then([](detail::Reply reply) { return std::get<T>(std::move(reply)); });
}

Future<roles::OpenedEpisode> CommandEnvironment::open(roles::OpenEpisode request) {
  return ask<roles::OpenedEpisode>(Verb::kOpen, request.episode, [&](uint64_t number) {
    return detail::open_line(number, request);
  });
}

Future<roles::EpisodeAnswer> CommandEnvironment::step(roles::EpisodeTurn turn) {
  return ask<roles::EpisodeAnswer>(Verb::kStep, turn.episode, [&](uint64_t number) {
    return detail::step_line(number, turn);
  });
}

Future<roles::ClosedEpisode> CommandEnvironment::close(roles::CloseEpisode request) {
  return ask<roles::ClosedEpisode>(Verb::kClose, request.episode,
                                   [](uint64_t number) { return detail::close_line(number); });
}

Future<detail::Reply> CommandEnvironment::add_call(Verb verb, uint64_t caller,
                                                   const MakeLine& make_line) {
  Completions done;
  std::unique_lock lock(mutex_);
  if (is_stopped_) throw stopped_error(name_);
  if (vain_starts_ >= kMaxVainStarts)
    throw Error(ErrorCode::kPeerLost, loss_->message() + "\n" + name_ + ": it ended " +
                                          std::to_string(vain_starts_) +
                                          " times in a row before it had opened an episode, and is "
                                          "not started again");
  const uint64_t number =
      verb == Verb::kOpen ? table_.next_number(caller) : table_.number_of(caller, verb);
  std::string line;
  try {
    line = make_line(number) + "\n";
  } catch (const Error& error) {
    if (verb == Verb::kStep) outbox_ += table_.give_up(number);
    wake();
    throw Error(error.code(), name_ + ": " + error.message());
  }

  // A call to a program that is about to start has its time once that is ready.
  const std::optional<Duration> timeout = is_ready_ ? std::optional(timeout_) : std::nullopt;
  Future<detail::Reply> reply = table_.wait(caller, number, verb, timeout, done);
  outbox_ += line;
  wake();
  lock.unlock();
  detail::complete(std::move(done));
  return reply;
}

void CommandEnvironment::stop() {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  wake();
}

// With the mutex.
void CommandEnvironment::wake() {
  changed_.notify_all();
  if (is_woken_) return;
  const char byte = 0;
  is_woken_ = ::write(wake_.in.get(), &byte, 1) == 1;
}

void CommandEnvironment::work() {
  const future_detail::LoopThreadScope scope;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) break;
    }
    try {
      if (program_ || start_again()) exchange();
    } catch (const Error& error) {
      lose(error);
    }
  }

  // Whoever waits need not wait for the program's end.
  Completions done;
  {
    const std::lock_guard lock(mutex_);
    table_.end(stopped_error(name_), done);
  }
  detail::complete(std::move(done));
  program_.reset();
}

// Waits until an episode wants a program, and starts it. False if it was woken for another reason.
bool CommandEnvironment::start_again() {
  std::unique_lock lock(mutex_);
  if (!table_.has_waiting()) {
    changed_.wait(lock, [&] { return is_stopped_ || table_.has_waiting(); });
    return false;
  }
  if (Deadline::Clock::now() < next_start_) {
    changed_.wait_until(lock, next_start_, [&] { return is_stopped_; });
    return false;
  }
  RETORT_LOG(kWarning) << name_ << ": the environment is started again";
  lock.unlock();

  program_ = std::make_unique<detail::Program>(name_, options_.command);
  program_->add(detail::hello_line(options_.episodes) + "\n");
  start_deadline_ = Deadline::after(options_.start_timeout);
  return true;
}

// Lines to the program and from it, as they come.
void CommandEnvironment::exchange() {
  Deadline until = Deadline::after(kIdle);
  {
    const std::lock_guard lock(mutex_);
    if (is_woken_) {
      char byte = 0;
      is_woken_ = ::read(wake_.out.get(), &byte, 1) != 1;
    }
    if (is_ready_) program_->add(std::exchange(outbox_, {}));
    const std::optional<Deadline> next =
        is_ready_ ? table_.next_deadline() : std::optional(start_deadline_);
    if (next && next->time() < until.time()) until = *next;
  }

  for (const detail::Program::Line& line : program_->exchange(wake_.out.get(), until))
    take_line(line);
  expire();
}

void CommandEnvironment::take_line(const detail::Program::Line& line) {
  last_heard_ = Deadline::Clock::now();
  program_->check_length(line);
  if (!is_ready_) return take_hello(line);
  const auto wrong = [&](ErrorCode code, const std::string& what) {
    return program_->wrong(code, line, what + ": " + detail::quoted_line(line.text));
  };
  detail::AnswerLine answer;
  try {
    answer = detail::read_answer(line.text);
  } catch (const Error& error) {
    throw wrong(error.code(), error.message() +
                                  "; expected an answer to \"open\", \"step\" or \"close\", and "
                                  "nothing else on stdout");
  }

  // What it does to the episode, and then, without the lock, whoever waits for it.
  Completions done;
  {
    const std::lock_guard lock(mutex_);
    const detail::EpisodeTable::Taken taken = table_.take(std::move(answer), wrong, done);
    outbox_ += taken.lines;
    if (taken.opened) vain_starts_ = 0;
  }
  detail::complete(std::move(done));
}

void CommandEnvironment::take_hello(const detail::Program::Line& line) {
  detail::Hello hello;
  try {
    hello = detail::read_hello(line.text);
  } catch (const Error& error) {
    throw program_->wrong(error.code(), line,
                          error.message() + ": " + detail::quoted_line(line.text));
  }

  const std::lock_guard lock(mutex_);
  is_ready_ = true;
  info_ = roles::EnvironmentInfo{name_, hello.user_turns, options_.episodes};
  table_.start_clocks(timeout_);
  changed_.notify_all();
}

// Gives up what is late; a program that says nothing at all meanwhile is taken to hang.
void CommandEnvironment::expire() {
  if (!is_ready_) {
    if (!start_deadline_.expired()) return;
    throw program_->failed(ErrorCode::kTimeout,
                           "no first line after " + format_duration(options_.start_timeout) +
                               " (start_timeout); expected {\"retort_environment\": 1}; a program "
                               "must flush its lines");
  }

  Completions done;
  std::optional<Deadline::Clock::time_point> earliest;
  int64_t given_up = 0;
  {
    const std::lock_guard lock(mutex_);
    outbox_ += table_.expire(
        [&](const std::string& call) {
          return program_->failed(ErrorCode::kTimeout, call + " is not answered after " +
                                                           format_duration(timeout_) +
                                                           " (timeout)");
        },
        done, earliest);
    given_up = table_.num_given_up();
  }
  detail::complete(std::move(done));

  // Its episodes are lost, for what one of them waits for may hold up all.
  if (earliest && last_heard_ < *earliest)
    throw program_->failed(ErrorCode::kTimeout, "it said nothing for " +
                                                    format_duration(timeout_) + " (timeout)");
  if (given_up >= options_.episodes)
    throw program_->failed(ErrorCode::kTimeout,
                           std::to_string(given_up) +
                               " episodes were given up, and it has closed none of them");
}

// The program is gone, or is ended here. All that its episodes wait for fails.
void CommandEnvironment::lose(const Error& error) {
  const Error theirs(ErrorCode::kPeerLost, error.message());
  RETORT_LOG(kWarning) << error.message();
  program_.reset();

  Completions done;
  {
    const std::lock_guard lock(mutex_);
    outbox_.clear();
    is_ready_ = false;
    ++vain_starts_;
    const Duration pause = vain_starts_ > 1 ? kFirstPause * (int64_t{1} << (vain_starts_ - 2))
                                            : Duration(0);
    next_start_ = Deadline::Clock::now() + pause;
    loss_ = error;
    table_.lose(theirs, done);
    changed_.notify_all();
  }
  detail::complete(std::move(done));
}

}  // namespace retort::environments
