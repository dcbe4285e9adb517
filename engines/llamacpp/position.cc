#include "engines/llamacpp/position.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engines/llamacpp/parameters.h"

namespace retort::engines::llamacpp {
namespace {

// A search lists this many of the most probable tokens at first, and kSearchFactor times as many
// each time that the given one is not among them.
constexpr int64_t kFirstSearch = 64;
constexpr int64_t kSearchFactor = 16;

// The server drew the token it was made to draw, and it alone.
void check_forced(const Completion& completion, int32_t id) {
  const int32_t drawn = completion.token_ids.front();
  if (completion.token_ids.size() == 1 && drawn == id) return;
  throw Error(ErrorCode::kMismatch, "the server drew token " + std::to_string(drawn) + " where " +
                                        std::to_string(id) +
                                        " was forced (logit_bias): it is barred there, or its "
                                        "logit is infinite");
}

}  // namespace

PositionRun::PositionRun(Session& session, PositionQuestion question, int64_t vocab_rows,
                         Deadline deadline)
    : Run(session.loop()),
      session_(session),
      question_(std::move(question)),
      vocab_rows_(vocab_rows),
      deadline_(deadline) {}

void PositionRun::begin() {
  const int64_t num_top = std::max<int64_t>(question_.top_k, 1);
  await(force(question_.given, num_top), [this](const Completion& completion) {
    session_.server().with_address([&] { check_forced(completion, question_.given); });
    if (!completion.chances.empty()) {
      const Chances& chances = completion.chances.front();
      finish(position(chances, chances.log_prob));
      return;
    }

    // The server says nothing of a token that ends within a character. Another one is forced, of
    // which it speaks, and the given token is looked for among the most probable ones beside it.
    await(session_.plain_token(deadline_),
          [this](int32_t plain) { search(plain, std::max(question_.top_k, kFirstSearch)); });
  });
}

void PositionRun::search(int32_t plain, int64_t num_top) {
  num_top = std::min(num_top, vocab_rows_);
  await(force(plain, num_top), [this, plain, num_top](const Completion& completion) {
    session_.server().with_address([&] {
      check_forced(completion, plain);
      if (completion.chances.empty())
        refuse_field("completion_probabilities", "are missing for a token that is a text");
    });

    const Chances& chances = completion.chances.front();
    const auto& ids = chances.top_ids;
    const auto found = std::find(ids.begin(), ids.end(), question_.given);
    if (found == ids.end()) {
      // This ends: a list of the whole vocabulary holds the token, since read_completion() has
      // found no id twice.
      search(plain, num_top * kSearchFactor);
      return;
    }
    finish(position(chances, chances.top_log_probs[static_cast<size_t>(found - ids.begin())]));
  });
}

Future<Completion> PositionRun::force(int32_t id, int64_t num_top) {
  return session_.complete(
      {.ids = question_.ids,
       .prompt_tokens = question_.prefix,
       .parameters = forcing_parameters(id, num_top),
       .bounds = {.vocab_rows = vocab_rows_, .max_tokens = 1, .num_top = num_top},
       .repeatable = true},
      deadline_);
}

Position PositionRun::position(const Chances& chances, float given) const {
  const auto top = static_cast<int64_t>(
      std::min<size_t>(static_cast<size_t>(question_.top_k), chances.top_ids.size()));
  return {.given = given,
          .top_ids = {chances.top_ids.begin(), chances.top_ids.begin() + top},
          .top_log_probs = {chances.top_log_probs.begin(), chances.top_log_probs.begin() + top}};
}

}  // namespace retort::engines::llamacpp
