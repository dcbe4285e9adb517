#include "recipes/rewards/detail/program.h"

#include <optional>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

constexpr int64_t kSilentBatches = 3;  // after which a program is taken to hang

}  // namespace

// A batch whose answers are not all there yet.
struct Program::Batch {
  int64_t first_id = 0;
  Scores scores;
  std::vector<bool> answered;
  size_t missing = 0;
};

Program::Program(std::string name, std::vector<std::string> argv, Duration timeout)
    : name_(std::move(name)), argv_(std::move(argv)), timeout_(timeout) {
  start();
}
Program::~Program() = default;

void Program::start() { program_ = std::make_unique<LineProgram>("reward '" + name_ + "'", argv_); }

Program::Batch Program::send_batch(const std::vector<Json>& questions) {
  Batch batch{.first_id = next_id_,
              .scores = Scores(questions.size()),
              .answered = std::vector<bool>(questions.size()),
              .missing = questions.size()};
  for (const Json& question : questions) {
    Json request;
    request["id"] = next_id_++;
    request.update(question);
    program_->add(dump(request) + "\n");
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
  RETORT_LOG(kWarning) << "reward '" << name_ << "': command '" << program_->command()
                       << "': " << missing << " of " << asked
                       << " completions are not scored after " << format_duration(timeout_)
                       << " (timeout) and have no score, " << unscored_
                       << " so far; it is started again";

  // Late answers to this batch go with the process, so that none of them is taken for one to the
  // next.
  program_->kill();
  start();
  return true;
}

Scores Program::ask(const std::vector<Json>& questions, Late late) {
  if (program_->is_killed())
    fail(ErrorCode::kClosed, name_,
         "the command '" + program_->command() + "' failed before and is not started again");
  Batch batch = send_batch(questions);

  // Answers may come in any order: their ids say what they answer.
  const auto is_open = [&] { return batch.missing > 0 || program_->has_unsent(); };
  const Deadline deadline = Deadline::after(timeout_);
  while (is_open()) {
    if (deadline.expired()) {
      if (late == Late::kUnscored && begin_again(batch)) return std::move(batch.scores);
      give_up(ErrorCode::kTimeout,
              std::to_string(batch.missing) + " of " + std::to_string(questions.size()) +
                  " completions are not scored after " + format_duration(timeout_) + " (timeout)");
    }
    const LineProgram::Heard heard = program_->exchange(deadline);
    take(batch, heard);
    if (heard.over != LineProgram::Over::kNot && is_open()) lost(batch);
  }

  // Answers beyond those that were asked for are read now if they are there already; else the next
  // batch finds them, as it finds that the program is gone.
  for (bool more = true; more;) {
    const LineProgram::Heard heard = program_->exchange(Deadline::after(Duration(0)));
    take(batch, heard);
    more = !heard.lines.empty();
    if (more && deadline.expired()) give_up(ErrorCode::kCorrupt, "it does not stop to write");
  }
  return std::move(batch.scores);
}

void Program::take(Batch& batch, const LineProgram::Heard& heard) {
  for (const LineProgram::Line& line : heard.lines)
    take_line(batch, line);

  // The last line of a program that has ended needs no end.
  if (heard.over != LineProgram::Over::kStdout) return;
  if (const std::optional<LineProgram::Line> last = program_->take_half_line())
    take_line(batch, *last);
}

void Program::take_line(Batch& batch, const LineProgram::Line& line) {
  if (line.is_cut)
    give_up(ErrorCode::kCorrupt, "it wrote a line of more than " +
                                     std::to_string(LineProgram::kMaxLineBytes) +
                                     " bytes: " + excerpt(line.text));
  const auto refuse = [&](const std::string& why) -> void {
    give_up(
        ErrorCode::kCorrupt,
        "it wrote a line that " + why + ": " + excerpt(line.text) +
            "; expected {\"id\": NUMBER, \"score\": NUMBER or null} and nothing else on stdout");
  };

  const Json answer = Json::parse(line.text, nullptr, false);
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

void Program::lost(const Batch& batch) {
  give_up(ErrorCode::kPeerLost, "it " + program_->ending() + "; " + std::to_string(batch.missing) +
                                    " of " + std::to_string(batch.scores.size()) +
                                    " completions were not scored");
}

void Program::give_up(ErrorCode code, const std::string& what) {
  const Error error = program_->failed(code, what);
  program_->kill();
  throw error;
}

}  // namespace retort::rewards::detail
