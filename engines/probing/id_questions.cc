// Whether an id is the same token to the engine as to the tokenizer.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "engines/probing/differences.h"
#include "engines/probing/local_copy.h"
#include "engines/probing/session.h"

namespace retort::engines {
namespace {

// Plain text must be likelier than its neighbours in the vocabulary by both of these. A model
// without training, whose logits may be wild, finds one of them likelier by chance.
constexpr double kTextMargin = 1.0;          // nats a token
constexpr double kTextStandardErrors = 4.0;  // of the mean of as many tokens
// The copy's numbers must be nearer to the engine's than those of neighbouring ids are, by this.
constexpr double kCopyShare = 0.25;

ScoreRequest moved(const ScoreRequest& request, int32_t step, int64_t ids) {
  return {moved_ids(request.token_ids, step, ids), request.positions, 0};
}

std::vector<double> nats_of(const Scored& scored) {
  std::vector<double> nats;
  for (const float value : scored.given)
    nats.push_back(-std::max(value, -100.0f));
  return nats;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Whether `a` is clearly less than `b`, position by position.
bool clearly_less(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean = mean_of(b) - mean_of(a);
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i)
    squares += std::pow(b[i] - a[i] - mean, 2);
  const auto count = static_cast<double>(a.size());
  const double standard_error = std::sqrt(squares / (count * (count - 1)));
  return mean >= kTextMargin && mean >= kTextStandardErrors * standard_error;
}

// Compares the engine with a copy of what it is said to serve.
void compare_with_copy(ProbeSession& session) {
  const models::Decoder& copy = *session.subject.local;
  Contract& contract = session.contract;
  const int64_t ids = std::min(session.ids, copy.config().vocab_size);
  ScoreRequest text = session.text_request();
  text.top_k = std::min(text.top_k, ids);
  const Scored own = score_locally(copy, text);
  contract.local = difference(*session.cold, own);

  // The copy also scores the text with all its ids one up and one down, as a tokenizer that is one
  // off would number them. The engine must be much nearer to the right ids than to those, however
  // large its rounding is.
  const double right = difference(session.cold->given, own.given).mean;
  for (const int32_t step : {1, -1}) {
    const double wrong =
        difference(session.cold->given, score_locally(copy, moved(text, step, ids)).given).mean;
    if (right <= kCopyShare * wrong) continue;
    session.refute_ids("log-probabilities of the text are " + three_digits(right) +
                       " nats off the local copy's on average, and " + three_digits(wrong) +
                       " off those of the ids moved by " + std::to_string(step) +
                       "; the engine serves another model, or numbers its tokens differently");
  }
  if (contract.ids == IdProof::kRefuted) return;
  contract.ids = IdProof::kLocalCopy;
  contract.ids_why = three_digits(right) + " nats off the local copy on average";
}

// Without a copy only plain text tells: it is likely only if ids mean what the tokenizer says, and
// its neighbours in the vocabulary are no text.
void compare_with_neighbours(ProbeSession& session) {
  Contract& contract = session.contract;
  const ScoreRequest text = session.text_request();
  // A tokenizer that is one off makes text of what is sent as its neighbours: then the text moved
  // up or down is the likelier one. Where none of the three is clearly likelier, nothing is proven.
  const std::vector<double> right = nats_of(*session.cold);
  const std::vector<Scored> others =
      session.ask.score_together("the text with its ids moved by one",
                                 {moved(text, 1, session.ids), moved(text, -1, session.ids)});
  const std::vector<double> up = nats_of(others[0]);
  const std::vector<double> down = nats_of(others[1]);
  contract.text_nats = mean_of(right);
  contract.shifted_nats = std::min(mean_of(up), mean_of(down));

  const std::string numbers =
      "plain text has " + three_digits(mean_of(right)) + " nats a token, its ids moved up by one " +
      three_digits(mean_of(up)) + ", down by one " + three_digits(mean_of(down));
  if (clearly_less(up, right) || clearly_less(down, right)) {
    session.refute_ids(numbers + ": the engine numbers its tokens one off");
  } else if (contract.ids != IdProof::kRefuted) {
    const bool proven = clearly_less(right, up) && clearly_less(right, down);
    contract.ids = proven ? IdProof::kText : IdProof::kUnproven;
    contract.ids_why = numbers;
  }
}

}  // namespace

void ask_ids(ProbeSession& session) {
  Contract& contract = session.contract;
  if (session.abilities.scores) {
    if (session.subject.local)
      compare_with_copy(session);
    else
      compare_with_neighbours(session);
    return;
  }

  // An engine that only draws has nothing but its tokens: the copy must draw the same ones
  // greedily.
  if (!contract.greedy_equal_local) {
    if (contract.ids != IdProof::kRefuted)
      contract.ids_why = "the engine scores nothing, and there is no local copy";
  } else if (*contract.greedy_equal_local < contract.greedy_tokens) {
    session.refute_ids("the local copy draws other greedy tokens, from number " +
                       std::to_string(*contract.greedy_equal_local) + " on");
  } else if (contract.ids != IdProof::kRefuted) {
    contract.ids = IdProof::kLocalCopy;
    contract.ids_why = "greedy tokens are the local copy's";
  }
}

}  // namespace retort::engines
