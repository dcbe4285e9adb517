// Completions: that they are drawn as asked, and again the same.
#include <algorithm>

#include "base/error.h"
#include "engines/probing/differences.h"
#include "engines/probing/local_copy.h"
#include "engines/probing/session.h"

namespace retort::engines {
namespace {

constexpr uint64_t kSeed = 11;
constexpr uint64_t kOtherSeed = 12;
// A greedy token may be this much less probable than the first of the top-k: a tie, rounded
// another way.
constexpr double kTie = 0.1;

DrawRequest completion(const ProbeSession& session, double temperature, uint64_t seed) {
  return {.prompt = session.text.sequence(),
          .how = {.sampling = {.temperature = temperature},
                  .max_new_tokens = kProbeDrawnTokens,
                  .eos_token_ids = session.subject.end_tokens},
          .seed = seed};
}

// Returns the question that scores a completion: each of its tokens behind those before it.
ScoreRequest scoring_of(const DrawRequest& request, const Drawn& drawn, int64_t top_k) {
  ScoreRequest score{.token_ids = request.prompt, .positions = {}, .top_k = top_k};
  for (const int32_t id : drawn.token_ids) {
    score.positions.push_back(static_cast<int32_t>(score.token_ids.size()) - 1);
    score.token_ids.push_back(id);
  }
  return score;
}

// A greedily drawn token must be the first of the top-k when it is scored, or as probable as that
// one.
void check_greedy(ProbeSession& session, const Drawn& drawn, const Scored& scored) {
  if (!scored.ids.defined()) return;
  const at::Tensor first = scored.log_probs.select(1, 0).contiguous();
  for (size_t i = 0; i < drawn.token_ids.size(); ++i) {
    const float most = first.const_data_ptr<float>()[i];
    if (scored.given[i] >= most - kTie) continue;
    session.refute_ids("token " + std::to_string(drawn.token_ids[i]) +
                       ", drawn greedily, has log-probability " + three_digits(scored.given[i]) +
                       " when it is scored, and another " + three_digits(most) +
                       ": ids of answers are not those of questions, or it is not drawn greedily");
  }
}

// Draws the greedy completion once more, with one of its own tokens as an end token: the engine
// should come to that token again and must end there.
void ask_end(ProbeSession& session, const DrawRequest& greedy, const Drawn& drawn) {
  Contract& contract = session.contract;
  const std::vector<int32_t>& tokens = drawn.token_ids;
  // The end token should not be the first one, so that the engine has something to draw before it;
  // that needs a completion of two different tokens.
  auto end = tokens.begin() + 1;
  while (end != tokens.end() && *end == tokens.front())
    ++end;
  if (end == tokens.end()) end = tokens.begin();

  DrawRequest request = greedy;
  request.how.eos_token_ids.push_back(*end);
  contract.ends_why = "token " + std::to_string(*end) + " after " +
                      std::to_string(end - tokens.begin()) + " others";
  try {
    const Drawn ended = session.ask.draw("a completion that an ordinary token ends", request);
    const auto at = std::find(ended.token_ids.begin(), ended.token_ids.end(), *end);
    if (at == ended.token_ids.end()) {
      contract.ends_why = "greedy completions differ, so that none could be told";
    } else {
      const bool last = at + 1 == ended.token_ids.end();
      const bool honoured = last && ended.finish_reason == models::FinishReason::kEos;
      contract.ends = honoured ? EndProof::kHonoured : EndProof::kIgnored;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    contract.ends = EndProof::kRefused;
    contract.ends_why = error.message();
  }
}

}  // namespace

void ask_draws(ProbeSession& session) {
  Contract& contract = session.contract;
  const DrawRequest greedy_request = completion(session, 0, 0);
  const DrawRequest seeded_request = completion(session, 1, kSeed);
  const Drawn greedy = session.ask.draw("a greedy completion", greedy_request);
  const Drawn seeded = session.ask.draw("a completion with a seed", seeded_request);
  contract.greedy_tokens = static_cast<int64_t>(greedy.token_ids.size());

  // The same seed is asked for again alone, and then beside other completions: an engine may repeat
  // itself in the one case and not in the other.
  const Drawn again = session.ask.draw("a completion with the same seed", seeded_request);
  contract.seeds_repeat = again.token_ids == seeded.token_ids;
  const std::vector<Drawn> together = session.ask.draw_together(
      "completions beside each other",
      {completion(session, 1, kOtherSeed), seeded_request, greedy_request});
  contract.seeds_in_batch = together[1].token_ids == seeded.token_ids;
  contract.seeds_differ = together[0].token_ids != seeded.token_ids;

  // The log-probabilities that came with drawn tokens are compared with those of the same tokens
  // when they are scored.
  if (session.has_scores()) {
    const std::vector<Scored> scored = session.scores(
        "completions that were drawn", {scoring_of(greedy_request, greedy, session.top_k),
                                        scoring_of(seeded_request, seeded, session.top_k)});
    check_greedy(session, greedy, scored[0]);
    if (!seeded.log_probs.empty())
      contract.drawn_and_scored = difference(seeded.log_probs, scored[1].given);
  }

  if (session.subject.local) {
    const std::vector<int32_t> own =
        greedy_locally(*session.subject.local, greedy_request.prompt, contract.greedy_tokens);
    const auto apart =
        std::mismatch(greedy.token_ids.begin(), greedy.token_ids.end(), own.begin(), own.end());
    contract.greedy_equal_local = apart.first - greedy.token_ids.begin();
  }
  ask_end(session, greedy_request, greedy);

  // The last draw is as the role will draw, so that what the engine refuses shows before the first
  // step.
  DrawRequest as_role = completion(session, 1, kSeed);
  as_role.how.sampling = session.options.sampling;
  session.ask.draw("a completion drawn as generation says", as_role);
}

}  // namespace retort::engines
