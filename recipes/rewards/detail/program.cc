#include "recipes/rewards/detail/program.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "base/process/child.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 20;  // of stdout
constexpr size_t kStderrBytes = 2000;              // kept for errors
constexpr int64_t kSilentBatches = 3;              // after which a program is taken to hang
// The exit code of a program that has closed its pipes is waited for this long.
constexpr Duration kDeathGrace = std::chrono::milliseconds(3'000);

std::string joined(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& argument : argv)
    text += (text.empty() ? "" : " ") + argument;
  return text;
}

}  // namespace

// A batch whose answers are not all there yet.
struct Program::Batch {
  std::string requests;
  size_t sent = 0;
  int64_t first_id = 0;
  Scores scores;
  std::vector<bool> answered;
  size_t missing = 0;
};

Program::Program(std::string name, std::vector<std::string> argv, Duration timeout)
    : name_(std::move(name)), argv_(std::move(argv)), timeout_(timeout) {
  try {
    child_ = std::make_unique<Child>(argv_);
  } catch (const Error& error) {
    fail(error.code(), name_, error.message());
  }
}
Program::~Program() = default;

Program::Batch Program::start_batch(const std::vector<Json>& questions) {
  Batch batch{.first_id = next_id_,
              .scores = Scores(questions.size()),
              .answered = std::vector<bool>(questions.size()),
              .missing = questions.size()};
  for (const Json& question : questions) {
    Json request;
    request["id"] = next_id_++;
    request.update(question);
    batch.requests += dump(request) + "\n";
  }
  return batch;
}

// Gives up the questions of a batch that are not answered, and starts the program again. False if
// it seems to answer nothing at all.
bool Program::begin_again(const Batch& batch) {
  const auto missing = static_cast<int64_t>(batch.missing);
  const auto asked = static_cast<int64_t>(batch.scores.size());
  silent_batches_ = missing < asked ? 0 : silent_batches_ + 1;
  if (!has_answered_ || silent_batches_ >= kSilentBatches) return false;
  unscored_ += missing;
  RETORT_LOG(kWarning) << "reward '" << name_ << "': command '" << joined(argv_) << "': " << missing
                       << " of " << asked << " completions are not scored after "
                       << format_duration(timeout_) << " (timeout) and have no score, " << unscored_
                       << " so far; it is started again";
  // Late answers to this batch go with the process, so that none of them is taken for one to the
  // next.
  child_->kill();
  child_.reset();
  pending_.clear();
  deaf_ = false;
  try {
    child_ = std::make_unique<Child>(argv_);
  } catch (const Error& error) {
    fail(error.code(), name_, error.message());
  }
  return true;
}

Scores Program::ask(const std::vector<Json>& questions, Late late) {
  if (!child_)
    fail(ErrorCode::kClosed, name_,
         "the command '" + joined(argv_) + "' failed before and is not started again");
  Batch batch = start_batch(questions);

  // Reading and writing take turns, so that neither side waits for the other with full pipes.
  // Answers may come in any order: their ids say what they answer.
  const Deadline deadline = Deadline::after(timeout_);
  while (batch.missing > 0 || batch.sent < batch.requests.size()) {
    if (!wait(batch, deadline)) {
      if (late == Late::kUnscored && begin_again(batch)) return std::move(batch.scores);
      give_up(ErrorCode::kTimeout,
              std::to_string(batch.missing) + " of " + std::to_string(questions.size()) +
                  " completions are not scored after " + format_duration(timeout_) + " (timeout)");
    }
    read_stderr();
    // Answers that it wrote before it closed its stdin count, so they are read before it is given
    // up.
    while (read_answers(batch) && deaf_ && !deadline.expired()) {
    }
    if (deaf_ && batch.missing > 0) lost(batch, "closed its stdin");
    send(batch);
  }

  // Answers beyond those that were asked for are read now if they are there already; else the next
  // batch finds them.
  while (read_answers(batch)) {
    if (deadline.expired()) give_up(ErrorCode::kCorrupt, "it does not stop to write");
  }
  return std::move(batch.scores);
}

// Waits until a pipe can be used. False at the deadline.
bool Program::wait(const Batch& batch, const Deadline& deadline) {
  std::vector<pollfd> fds{{child_->out(), POLLIN, 0}};
  if (child_->err() >= 0) fds.push_back({child_->err(), POLLIN, 0});
  const bool more = batch.sent < batch.requests.size();
  // Its stdin is polled even with nothing to send: POLLERR says that it does not read any more.
  fds.push_back({child_->in(), static_cast<short>(more ? POLLOUT : 0), 0});
  for (;;) {
    if (deadline.expired()) return false;
    const auto left = std::min<int64_t>(deadline.remaining().count() + 1, 60'000);
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(left));
    deaf_ = ready > 0 && (fds.back().revents & POLLERR) != 0;
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR)
      give_up(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));
  }
}

void Program::send(Batch& batch) {
  while (batch.sent < batch.requests.size()) {
    const ssize_t wrote = write_quietly(child_->in(), batch.requests.data() + batch.sent,
                                        batch.requests.size() - batch.sent);
    if (wrote >= 0) {
      batch.sent += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      lost(batch, "closed its stdin");
    }
  }
}

bool Program::read_answers(Batch& batch) {
  char buffer[1 << 16];
  const ssize_t got = ::read(child_->out(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0)
    give_up(ErrorCode::kUnavailable, std::string("reading its stdout: ") + std::strerror(errno));
  if (got == 0) {
    if (!pending_.empty()) take_line(batch, std::exchange(pending_, {}));
    if (batch.missing == 0) return false;  // the next batch finds that it is gone
    lost(batch, "closed its stdout");
  }

  // Whole lines are answers; what follows the last one waits for its end.
  pending_.append(buffer, static_cast<size_t>(got));
  size_t begin = 0;
  for (size_t end = pending_.find('\n'); end != std::string::npos;
       end = pending_.find('\n', begin)) {
    take_line(batch, std::string_view(pending_).substr(begin, end - begin));
    begin = end + 1;
  }
  pending_.erase(0, begin);
  if (pending_.size() > kMaxLineBytes)
    give_up(ErrorCode::kCorrupt, "it wrote a line of more than " + std::to_string(kMaxLineBytes) +
                                     " bytes: " + excerpt(pending_));
  return true;
}

void Program::take_line(Batch& batch, std::string_view line) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const auto refuse = [&](const std::string& why) -> void {
    give_up(
        ErrorCode::kCorrupt,
        "it wrote a line that " + why + ": " + excerpt(line) +
            "; expected {\"id\": NUMBER, \"score\": NUMBER or null} and nothing else on stdout");
  };

  const Json answer = Json::parse(line.begin(), line.end(), nullptr, false);
  if (!answer.is_object()) refuse("is not a JSON object");
  if (!answer.contains("id") || !answer["id"].is_number_integer()) refuse("has no id");
  if (!answer.contains("score")) refuse("has no score");
  // Ids go on from batch to batch, so one below the first of this batch was answered in its own.
  const int64_t number = answer["id"].get<int64_t>() - batch.first_id;
  if (number >= static_cast<int64_t>(batch.answered.size())) refuse("answers what was not asked");
  if (number < 0 || batch.answered[static_cast<size_t>(number)]) refuse("answers twice");

  std::optional<double> score;
  std::string why;
  if (!read_score(answer["score"], score, why)) refuse("is no answer (" + why + ")");
  batch.scores[static_cast<size_t>(number)] = score;
  batch.answered[static_cast<size_t>(number)] = true;
  --batch.missing;
  has_answered_ = true;
  silent_batches_ = 0;
}

void Program::read_stderr() {
  char buffer[1 << 16];
  while (child_->err() >= 0) {
    const ssize_t got = ::read(child_->err(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return child_->close_err();
    stderr_.append(buffer, static_cast<size_t>(got));
    if (stderr_.size() > kStderrBytes) stderr_.erase(0, stderr_.size() - kStderrBytes);
    // A program that writes without end must not keep us from looking at the deadline.
    if (got < static_cast<ssize_t>(sizeof buffer)) return;
  }
}

void Program::lost(const Batch& batch, const std::string& what) {
  const std::string ending = child_->ending(kDeathGrace);
  give_up(ErrorCode::kPeerLost,
          "it " + (ending.empty() ? what : ending) + "; " + std::to_string(batch.missing) + " of " +
              std::to_string(batch.scores.size()) + " completions were not scored");
}

void Program::give_up(ErrorCode code, const std::string& what) {
  read_stderr();
  child_->kill();
  child_.reset();
  std::string last = stderr_;
  while (!last.empty() && (last.back() == '\n' || last.back() == '\r'))
    last.pop_back();
  fail(code, name_,
       "command '" + joined(argv_) + "': " + what +
           (last.empty() ? "" : "; the last it wrote to stderr:\n" + last));
}

}  // namespace retort::rewards::detail
