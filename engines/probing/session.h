// One probe: what it has asked so far, and what it has found.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engines/probing/probe.h"
#include "engines/probing/probe_text.h"
#include "engines/probing/questions.h"

namespace retort::engines {

struct ProbeSession {
  const ProbeSubject& subject;
  const ProbeOptions& options;
  Abilities abilities;
  int64_t ids;    // of the engine's vocabulary
  int64_t top_k;  // of questions that compare; 0 for an engine without
  ProbeText text;
  Questions ask;
  Contract contract;
  // The text's log-probabilities, the engine's or, of one that does not score, the local copy's;
  // none without both.
  std::optional<Scored> cold;

  // The probe's text, and the positions that are asked for.
  ScoreRequest text_request(uint64_t number = 0) const;
  // Log-probabilities of given tokens, the engine's or the local copy's, and whether there are any.
  bool has_scores() const { return abilities.scores || subject.local; }
  std::vector<Scored> scores(const std::string& what, std::vector<ScoreRequest> requests);
  // The first reason counts.
  void refute_ids(const std::string& why);
};

// Its errors name the question.
EngineState ask_state(Engine& engine, Deadline deadline);

// "0.0123"
std::string three_digits(double value);

// The widest top-k, the highest id; the text cold, warm, extended, in a batch. score_questions.cc
void ask_scores(ProbeSession& session);
// Whether ids are the tokenizer's, by the local copy or by the text. id_questions.cc
void ask_ids(ProbeSession& session);
// Completions: greedy, seeded, ended. draw_questions.cc
void ask_draws(ProbeSession& session);
// What log-probabilities of drawn tokens mean. meaning_questions.cc
void ask_meaning(ProbeSession& session);
// Log-probabilities at ids that are named, after ask_scores. named_questions.cc
void ask_named(ProbeSession& session);
void ask_hidden_states(ProbeSession& session);  // hidden_questions.cc
void ask_rewards(ProbeSession& session);        // reward_questions.cc

}  // namespace retort::engines
