// The same tokens, asked in every way in which an engine could answer differently.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engines/probing/differences.h"
#include "engines/probing/session.h"

namespace retort::engines {
namespace {

double largest_mass(const Scored& scored) {
  return scored.log_probs.to(at::kDouble).exp().sum(1).max().item<double>();
}

// Asks one position for as many ids as the engine claims to list. A top-k of all ids must have all
// of the mass.
void ask_width(ProbeSession& session) {
  const int64_t width = std::min(session.abilities.max_top_k, session.ids);
  if (width == 0) return;
  const std::vector<int32_t> tokens = session.text.sequence();
  const Scored scored =
      session.ask.score("the widest top-k, " + std::to_string(width),
                        {.token_ids = {tokens[0], tokens[1]}, .positions = {0}, .top_k = width});
  session.contract.top_k = width;
  session.contract.top_k_mass = largest_mass(scored);
  if (width == session.ids) session.contract.whole_mass = session.contract.top_k_mass;
}

// What the engine answers is of no interest, only that it does: a smaller vocabulary makes it
// refuse the id.
void ask_highest_id(ProbeSession& session) {
  const std::vector<int32_t> tokens = session.text.sequence();
  const auto highest = static_cast<int32_t>(session.contract.tokenizer_ids - 1);
  try {
    const std::string what = "the tokenizer's highest id";
    if (session.abilities.scores)
      session.ask.score(what, {{tokens[0], highest}, {0}, 0});
    else if (session.abilities.rewards > 0)
      session.ask.reward_together(what, {{{tokens[0]}, {highest}}});
    else
      session.ask.draw(what,
                       {.prompt = {tokens[0], highest},
                        .how = {.max_new_tokens = 1, .eos_token_ids = session.subject.end_tokens}});
    session.contract.highest_id = true;
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kMismatch;
    if (!refused) throw;
  }
}

// Compares two numbers of one answer: that of a given token, and that of the same id in the top-k.
void compare_with_entries(ProbeSession& session, const ScoreRequest& request,
                          const Scored& scored) {
  constexpr double kSameNumber = 1e-3;
  if (request.top_k == 0) return;
  const at::Tensor ids = scored.ids.contiguous();
  const at::Tensor values = scored.log_probs.contiguous();
  for (size_t r = 0; r < request.positions.size(); ++r) {
    const int32_t given = request.token_ids[static_cast<size_t>(request.positions[r]) + 1];
    const auto offset = static_cast<int64_t>(r) * request.top_k;
    const int32_t* row = ids.const_data_ptr<int32_t>() + offset;
    const float* numbers = values.const_data_ptr<float>() + offset;
    const auto at = std::find(row, row + request.top_k, given) - row;
    const bool listed = at < request.top_k;
    // A listed token must have the same number in both. One that is not listed must not be above
    // the least that is.
    const double off = scored.given[r] - numbers[listed ? at : request.top_k - 1];
    if (listed ? std::abs(off) > kSameNumber : off > kSameNumber)
      session.refute_ids("the given token " + std::to_string(given) + " has log-probability " +
                         three_digits(scored.given[r]) + ", and " +
                         (listed ? "its entry in the top-k of the same position "
                                 : "the least of the top-k, where it is missing, ") +
                         three_digits(numbers[listed ? at : request.top_k - 1]));
  }
}

}  // namespace

void ask_scores(ProbeSession& session) {
  ask_highest_id(session);
  if (!session.abilities.scores) return;
  ask_width(session);
  Contract& contract = session.contract;
  const ScoreRequest text = session.text_request();

  // The order matters here. Nobody has asked for these ids before, so this answer is computed
  // without a cache; from then on their prefix may be cached.
  session.cold = session.ask.score("the text, cold", text);
  compare_with_entries(session, text, *session.cold);
  const Scored warm = session.ask.score("the text, again", text);
  contract.warmed = difference(*session.cold, warm);
  contract.repeated = difference(warm, session.ask.score("the text, once more", text));

  ScoreRequest longer = text;
  const std::vector<int32_t>& more = session.text.continuation();
  longer.token_ids.insert(longer.token_ids.end(), more.begin(), more.end());
  contract.extended =
      difference(*session.cold, session.ask.score("the text with more behind it", longer));

  // The others begin differently, so that they share no prefix with the text and only the batch can
  // change its numbers.
  const std::vector<Scored> together = session.ask.score_together(
      "the text beside others",
      {session.text_request(1), text, session.text_request(2), session.text_request(3)});
  contract.batched = difference(warm, together[1]);
}

}  // namespace retort::engines
