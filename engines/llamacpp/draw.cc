#include "engines/llamacpp/draw.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "engines/llamacpp/alignment.h"
#include "engines/llamacpp/parameters.h"
#include "engines/llamacpp/request_checks.h"

namespace retort::engines::llamacpp {
namespace {

// 31 bits: servers read it as a signed or an unsigned number, and -1 means another each time.
uint32_t seed_of(uint64_t seed, uint64_t num_draws) {
  return static_cast<uint32_t>(random_bits(seed, num_draws) & 0x7fffffff);
}

}  // namespace

DrawRun::DrawRun(Session& session, DrawRequest request, Deadline deadline)
    : Run(session.loop()),
      session_(session),
      request_(std::move(request)),
      deadline_(deadline),
      ids_(request_.prompt) {}

void DrawRun::begin() {
  await(session_.served(deadline_), [this](const ServedModel& served) {
    vocab_rows_ = served.state.vocab_rows;
    check_request(request_, vocab_rows_);
    draw();
  });
}

int64_t DrawRun::tokens_left() const {
  return request_.how.max_new_tokens - static_cast<int64_t>(drawn_.token_ids.size());
}

void DrawRun::draw() {
  // Each completion of a run has a seed of its own, derived from the request's: with the same one,
  // those that continue a text would draw with the same random numbers again.
  const uint32_t seed = seed_of(request_.seed, num_draws_++);
  Json parameters = draw_parameters(request_.how, seed, static_cast<int64_t>(ids_.size()),
                                    tokens_left(), vocab_rows_);
  Future<Completion> answer = session_.complete(
      {.ids = PromptText(ids_),
       .prompt_tokens = ids_.size(),
       .parameters = parameters,
       .bounds = {.vocab_rows = vocab_rows_, .max_tokens = tokens_left(), .num_top = 1},
       .with_settings = true,
       .repeatable = false},
      deadline_);
  await(std::move(answer),
        [this, parameters = std::move(parameters)](const Completion& completion) {
          const bool over = session_.server().with_address([&] {
            take(completion, parameters);
            return ends(completion);
          });
          if (over)
            fill_from(0);
          else
            draw();
        });
}

// Appends the tokens up to our first end or stop token.
void DrawRun::take(const Completion& completion, const Json& parameters) {
  check_settings(parameters, completion.settings);
  const std::vector<int64_t> ends = request_.how.end_ids();
  const int64_t num_ids = request_.how.sampling.num_ids;
  const std::vector<float> log_probs = align(completion.token_ids, completion.chances);

  for (size_t i = 0; i < completion.token_ids.size(); ++i) {
    const int32_t id = completion.token_ids[i];
    if (num_ids > 0 && id >= num_ids)
      refuse_field("tokens", "has " + std::to_string(id) + ", which was barred");
    drawn_.token_ids.push_back(id);
    drawn_.log_probs.push_back(log_probs[i]);
    ids_.push_back(id);
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) break;
  }
}

bool DrawRun::ends(const Completion& completion) {
  const auto& stop = request_.how.stop;
  const int32_t last = drawn_.token_ids.back();
  const auto is_last = [&](const std::vector<int64_t>& ids) {
    return std::find(ids.begin(), ids.end(), last) != ids.end();
  };
  if (is_last(request_.how.eos_token_ids)) {
    drawn_.finish_reason = models::FinishReason::kEos;
    return true;
  }
  if (is_last(request_.how.stop_token_ids)) {
    drawn_.finish_reason = models::FinishReason::kStop;
    return true;
  }

  switch (completion.stop) {
    case StopType::kWord:
      if (std::find(stop.begin(), stop.end(), completion.stop_string) == stop.end())
        throw Error(ErrorCode::kMismatch, "the server ended at the text " +
                                              excerpt(completion.stop_string) +
                                              ", which is not in stop; start it without "
                                              "--reverse-prompt");
      drawn_.finish_reason = models::FinishReason::kStop;
      return true;

    case StopType::kLimit:
      drawn_.finish_reason = models::FinishReason::kLength;
      if (tokens_left() == 0) return true;
      refuse_request(
          std::string("max_new_tokens: the server ended ") +
          (completion.truncated ? "because its context is full" : "by a limit of its own") +
          ", after " + std::to_string(request_.prompt.size()) + " tokens of prompt and " +
          std::to_string(drawn_.token_ids.size()) +
          " of completion; ask for fewer, or give it "
          "a larger context (--ctx-size, which its slots share)");

    // The server ended at a token that the request does not name as an end. To the request it is a
    // token like any other, so the completion goes on behind it, and what follows has the same
    // distribution either way. Not with stop strings: the server would look for them in the new
    // text alone, and miss one that began before.
    case StopType::kEnd:
      drawn_.finish_reason = models::FinishReason::kLength;
      if (tokens_left() == 0) return true;
      if (stop.empty()) return false;
      refuse_request(
          "eos_token_ids: the server ends completions at token " + std::to_string(last) +
          " too, and stop strings cannot be followed beyond it; add it there, or use no stop");
  }
  RETORT_CHECK(false) << "another StopType";
  return true;
}

// Asks for the log-probabilities that the server left out, one token after the other: those of
// tokens that end within a character, and those of a stop string.
void DrawRun::fill_from(size_t at) {
  auto& log_probs = drawn_.log_probs;
  while (at < log_probs.size() && !std::isnan(log_probs[at]))
    ++at;
  if (at == log_probs.size()) {
    finish(std::move(drawn_));
    return;
  }

  // Each missing number takes a request of its own, which forces that token behind all that stands
  // before it.
  PositionQuestion question{.ids = PromptText(ids_),
                            .prefix = request_.prompt.size() + at,
                            .given = drawn_.token_ids[at],
                            .top_k = 0};
  const auto run =
      std::make_shared<PositionRun>(session_, std::move(question), vocab_rows_, deadline_);
  await(run->start(), [this, at](const Position& position) {
    drawn_.log_probs[at] = position.given;
    fill_from(at + 1);
  });
}

}  // namespace retort::engines::llamacpp
