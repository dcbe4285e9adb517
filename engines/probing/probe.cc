#include "engines/probing/probe.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "engines/probing/local_copy.h"
#include "engines/probing/session.h"
#include "http/url.h"

namespace retort::engines {
namespace {

constexpr int64_t kComparedIds = 64;  // of a top-k that is compared

Contract identity(const ProbeSubject& subject, const Abilities& abilities,
                  const EngineState& state) {
  Contract contract;
  contract.engine = subject.kind;
  contract.version = state.version;
  contract.served_model = state.served_model;
  contract.url = http::without_secrets(subject.url);
  contract.vocab_rows = state.vocab_rows;
  contract.context_tokens = state.context_tokens;
  contract.tokenizer_ids = subject.tokenizer.vocab_size();
  contract.tokenizer_fingerprint = subject.tokenizer.vocabulary_fingerprint();
  contract.draws = abilities.draws;
  contract.scores = abilities.scores;
  contract.gives_hidden_states = abilities.hidden_states;
  contract.rewards = abilities.rewards;
  return contract;
}

// The size of the vocabulary is the engine's word, then that of the model's config, and the
// tokenizer's if neither says it.
int64_t vocabulary(const ProbeSubject& subject, const EngineState& state) {
  if (state.vocab_rows > 0) return state.vocab_rows;
  return subject.vocab_rows > 0 ? subject.vocab_rows : subject.tokenizer.vocab_size();
}

void set_tolerance(const ProbeOptions& options, Contract& contract) {
  contract.tolerance_given = options.tolerance.has_value();
  if (options.tolerance) {
    contract.tolerance = *options.tolerance;
    return;
  }
  double largest = 0;
  for (const Difference& found :
       {contract.repeated, contract.warmed, contract.extended, contract.batched, contract.local})
    largest = std::max(largest, found.largest);
  if (contract.drawn != DrawnMeaning::kUnknown)
    largest = std::max(largest, contract.drawn_and_scored.largest);
  // The probe has seen how much numbers of one model vary at this engine. Four times that is still
  // the same model during a run.
  contract.tolerance = std::max(1e-4, 4 * largest);
}

}  // namespace

EngineState ask_state(Engine& engine, Deadline deadline) {
  Future<EngineState> state = engine.state(deadline);
  try {
    return state.get(deadline);
  } catch (const Error& error) {
    if (state.valid()) state.cancel();
    throw error.with("probe", "state");
  }
}

std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

ScoreRequest ProbeSession::text_request(uint64_t number) const {
  return {text.sequence(number), text.positions(), top_k};
}

std::vector<Scored> ProbeSession::scores(const std::string& what,
                                         std::vector<ScoreRequest> requests) {
  if (abilities.scores) return ask.score_together(what, std::move(requests));
  std::vector<Scored> answers;
  for (const ScoreRequest& request : requests)
    answers.push_back(score_locally(*subject.local, request));
  return answers;
}

void ProbeSession::refute_ids(const std::string& why) {
  if (contract.ids == IdProof::kRefuted) return;
  contract.ids = IdProof::kRefuted;
  contract.ids_why = why;
}

Contract probe(const ProbeSubject& subject, const ProbeOptions& options, Deadline deadline) {
  const auto begin = std::chrono::steady_clock::now();
  const Abilities abilities = subject.engine.abilities();
  const EngineState state = ask_state(subject.engine, deadline);
  const int64_t ids = vocabulary(subject, state);

  // An engine that does not score is compared with the local copy, which has every id.
  const int64_t widest = abilities.scores ? abilities.max_top_k : kComparedIds;
  ProbeSession session{.subject = subject,
                       .options = options,
                       .abilities = abilities,
                       .ids = ids,
                       .top_k = std::min({widest, kComparedIds, ids}),
                       .text = ProbeText(subject.tokenizer, state.context_tokens, options.nonce),
                       .ask = Questions(subject.engine, ids, deadline),
                       .contract = identity(subject, abilities, state),
                       .cold = std::nullopt};

  // Scores come first, since a draw would put the text into the engine's prefix cache. Draws and
  // ids need the cold scores.
  ask_scores(session);
  if (!abilities.scores && subject.local)
    session.cold = score_locally(*subject.local, session.text_request());
  if (abilities.draws) {
    ask_draws(session);
    ask_meaning(session);
  }
  ask_ids(session);
  if (options.names_ids) ask_named(session);
  if (abilities.hidden_states) ask_hidden_states(session);
  if (abilities.rewards > 0) ask_rewards(session);

  Contract contract = std::move(session.contract);
  set_tolerance(options, contract);
  contract.requests = session.ask.requests() + 1;
  contract.tokens = session.ask.tokens();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  contract.seconds = took.count();
  return contract;
}

}  // namespace retort::engines
