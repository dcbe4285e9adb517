// What a probe found that an engine's answers mean, and what a role needs of them.
//
//   const Contract contract = probe(subject, options, deadline);     // engines/probing/probe.h
//   check_contract(contract, {.what = Purpose::kDrawsWithRatio, ...});
//   write(folder / "contracts/generator.json", to_json(contract));
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"
#include "engines/contract/options.h"
#include "models/generation/request.h"

namespace retort::engines {

// The proof that the engine's ids are the tokenizer's, or that they are not.
enum class IdProof {
  kLocalCopy,  // log-probabilities are those of the local copy, and not of neighbouring ids
  kText,       // plain text is far likelier than the same ids moved by one
  kUnproven,   // nothing speaks against it, and nothing for it
  kRefuted     // Contract::ids_why says by what
};

// The distribution that the log-probability of a drawn token belongs to.
enum class DrawnMeaning {
  kNone,       // none came
  kRaw,        // the model's: temperature 1, whole vocabulary, however it was drawn
  kTempered,   // at the temperature of the draw, whole vocabulary
  kProcessed,  // the one it was drawn from: tempered, truncated and renormalised
  kUnknown     // Contract::drawn_why says why
};

// The probe names an ordinary token as an end token; this came of it.
enum class EndProof { kNotAsked, kHonoured, kRefused, kIgnored };

// How far log-probabilities of the same tokens are apart, absolute, in nats. count 0: not measured.
struct Difference {
  double largest = 0;
  double mean = 0;
  int64_t count = 0;

  template <class V>
  void fields(V& visit) {
    visit("largest", largest, "nats");
    visit("mean", mean, "nats");
    visit("count", count, "numbers compared; 0: not measured");
  }
};

struct Contract {
  EngineKind engine = EngineKind::kVllm;
  std::string version, served_model;
  std::string url;  // without user, password and query

  int64_t vocab_rows = 0;     // ids that the engine says it knows; 0: it does not say
  int64_t tokenizer_ids = 0;  // of the role's tokenizer: highest id + 1
  bool highest_id = false;    // it takes the tokenizer's highest id
  std::string tokenizer_fingerprint;
  int64_t context_tokens = 0;  // of prompt and completion; 0: it does not say

  bool draws = false, scores = false, gives_hidden_states = false;
  int64_t top_k = 0;  // the widest that came as it was asked for
  // Ids of a position that may be named; 0: none, by named_why, or nobody wanted to know.
  int64_t named_ids = 0;
  std::string named_why;

  IdProof ids = IdProof::kUnproven;
  std::string ids_why;
  std::optional<double> text_nats;     // mean of a token of plain text
  std::optional<double> shifted_nats;  // of the likelier of the same ids moved up and down by one

  DrawnMeaning drawn = DrawnMeaning::kNone;
  std::string drawn_why;
  // Whether tokens that top_p, or what else the role truncates by, excludes stay away.
  std::optional<bool> truncates;
  EndProof ends = EndProof::kNotAsked;
  std::string ends_why;

  std::optional<bool> seeds_repeat;    // the same seed, the same tokens
  std::optional<bool> seeds_differ;    // another seed, other tokens
  std::optional<bool> seeds_in_batch;  // the same seed beside other requests, the same tokens
  std::optional<double> whole_mass;    // sum of probabilities over the whole vocabulary
  double top_k_mass = 0;               // largest sum over a top-k

  Difference repeated;          // the same question again
  Difference warmed;            // again, when its prefix may be cached
  Difference extended;          // the same tokens at the beginning of a longer sequence
  Difference batched;           // beside other requests
  Difference named;             // of an id that is named, and in the top-k
  Difference drawn_and_scored;  // of tokens drawn at temperature 1
  Difference local;             // to the local copy
  int64_t greedy_tokens = 0;    // drawn at temperature 0
  std::optional<int64_t>
      greedy_equal_local;  // of those, before the first that the copy does not draw
  int64_t hidden_size = 0;
  std::optional<double> hidden_difference;  // largest |h - h'| / |h'| of a position, h' the copy's
  int64_t rewards = 0;                      // numbers that a completion gets; 0: none
  std::optional<double> reward;             // the first of the text's
  Difference reward_repeated;               // of all of them: the same question again
  Difference reward_batched;                // beside other requests
  bool writes = false;                      // it answers in words
  std::string written;                      // to the probe's question
  std::string answered_by;                  // the model, as its answers name it
  std::optional<bool> words_repeat;         // the same question, the same words
  std::optional<bool> words_in_batch;       // beside other requests, the same words
  std::optional<bool> words_stop_at_limit;  // it stops at max_new_tokens

  // Log-probabilities this far apart count as the same: the recipe's number, or max(1e-4, 4 * the
  // largest of the differences above).
  double tolerance = 1e-4;
  bool tolerance_given = false;

  int64_t requests = 0, tokens = 0;  // of the probe; a request's are its prompt and what it draws
  double seconds = 0;

  template <class V>
  void fields(V& visit);
};

// What a role asks of its engine, and why: the first says which of the others count.
enum class Purpose {
  kDrawsWithRatio,  // completions, and each token's log-probability as it was drawn
  kDraws,           // completions
  kGivenLogProbs,   // log-probabilities of given tokens
  kTopK,            // the most probable tokens of positions, at a temperature
  kHiddenStates,    // the model's final hidden states
  kRewards,         // a number for a completion
  kWords            // what it thinks of a completion, in words
};

struct Needs {
  Purpose what = Purpose::kGivenLogProbs;
  std::string role, objective;       // for messages: "teacher", "distill"
  models::SamplingOptions sampling;  // of draws
  int64_t top_k = 0;
  double temperature = 1;      // of top-k
  bool tail_mass = false;      // the loss uses the mass outside the top-k (tail: bucket, drop)
  int64_t context_tokens = 0;  // of the longest prompt and its completion; 0: any
  int64_t hidden_size = 0;     // 0: any
  int64_t label = 0;           // largest that is asked for, of rewards
  int64_t answer_tokens = 0;   // of the longest answer in words
  bool names_ids = false;      // of top-k: at ids that the student names
  bool seeds = false;          // a run must be repeatable
};

// Ids of a padded vocabulary that may stand among the most probable ones; more are no padding. So
// many more ids are asked for than a payload has.
inline constexpr int64_t kMaxMaskedIds = 16;

// Refuses what the role needs and the engine does not give, or has not been shown to give; says
// what would do. kMismatch: the engine is not what the recipe takes it for (other ids, other
// numbers than the local copy, numbers that change with the batch or the cache);
// kInvalidArgument: the recipe asks for what it cannot give. Context: role, engine, url.
void check_contract(const Contract& contract, const Needs& needs);

// Rewards this far apart count as the same: the recipe's tolerance, or what the probe found to
// vary.
double reward_tolerance(const Contract& contract);

// Numbers of the same model may differ by this much.
struct Allowed {
  double largest = 0, mean = 0;  // nats, or of rewards
};
// The limits for log-probabilities of two replicas of the engine, which may run on other devices.
// The largest is the recipe's tolerance; without one, what a local copy in another type may differ
// by.
Allowed allowed_of_replicas(const Contract& contract);
// The limits for their rewards; without a tolerance a share of `reward`.
Allowed allowed_of_replicas(const Contract& contract, double reward);
// The limits for the engine's log-probabilities against the student's own, once it has loaded the
// student's weights (receipt.h). Without the recipe's tolerance they are four times what the probe
// found to vary, and never more than a local copy may on average.
Allowed allowed_of_weights(const Contract& contract);

// One JSON object, several lines.
std::string to_json(const Contract& contract);
// kCorrupt naming the key that is missing, unknown or of another type.
Contract contract_from_json(const std::string& text);

// A line for each thing that was found, for a terminal; each ends with a newline.
std::string contract_table(const Contract& contract);

template <class V>
void Contract::fields(V& visit) {
  visit("engine", engine, "");
  visit("version", version, "");
  visit("served_model", served_model, "");
  visit("url", url, "");
  visit("vocab_rows", vocab_rows, "");
  visit("tokenizer_ids", tokenizer_ids, "");
  visit("highest_id", highest_id, "");
  visit("tokenizer_fingerprint", tokenizer_fingerprint, "");
  visit("context_tokens", context_tokens, "");
  visit("draws", draws, "");
  visit("scores", scores, "");
  visit("gives_hidden_states", gives_hidden_states, "");
  visit("top_k", top_k, "");
  visit("named_ids", named_ids, "");
  visit("named_why", named_why, "");

  // What the numbers mean.
  visit("ids", ids, "");
  visit("ids_why", ids_why, "");
  visit("text_nats", text_nats, "");
  visit("shifted_nats", shifted_nats, "");
  visit("drawn", drawn, "");
  visit("drawn_why", drawn_why, "");
  visit("truncates", truncates, "");
  visit("ends", ends, "");
  visit("ends_why", ends_why, "");
  visit("seeds_repeat", seeds_repeat, "");
  visit("seeds_differ", seeds_differ, "");
  visit("seeds_in_batch", seeds_in_batch, "");
  visit("whole_mass", whole_mass, "");
  visit("top_k_mass", top_k_mass, "");

  // How far they hold.
  visit("repeated", repeated, "");
  visit("warmed", warmed, "");
  visit("extended", extended, "");
  visit("batched", batched, "");
  visit("named", named, "");
  visit("drawn_and_scored", drawn_and_scored, "");
  visit("local", local, "");
  visit("greedy_tokens", greedy_tokens, "");
  visit("greedy_equal_local", greedy_equal_local, "");
  visit("hidden_size", hidden_size, "");
  visit("hidden_difference", hidden_difference, "");
  visit("rewards", rewards, "");
  visit("reward", reward, "");
  visit("reward_repeated", reward_repeated, "");
  visit("reward_batched", reward_batched, "");
  visit("writes", writes, "");
  visit("written", written, "");
  visit("answered_by", answered_by, "");
  visit("words_repeat", words_repeat, "");
  visit("words_in_batch", words_in_batch, "");
  visit("words_stop_at_limit", words_stop_at_limit, "");
  visit("tolerance", tolerance, "");
  visit("tolerance_given", tolerance_given, "");
  visit("requests", requests, "");
  visit("tokens", tokens, "");
  visit("seconds", seconds, "");
}

}  // namespace retort::engines

template <>
struct retort::EnumNames<retort::engines::IdProof> {
  using E = retort::engines::IdProof;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"local_copy", E::kLocalCopy},
       {"text", E::kText},
       {"unproven", E::kUnproven},
       {"refuted", E::kRefuted}}};
};
template <>
struct retort::EnumNames<retort::engines::DrawnMeaning> {
  using E = retort::engines::DrawnMeaning;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{
      {{"none", E::kNone},
       {"raw", E::kRaw},
       {"tempered", E::kTempered},
       {"processed", E::kProcessed},
       {"unknown", E::kUnknown}}};
};
template <>
struct retort::EnumNames<retort::engines::EndProof> {
  using E = retort::engines::EndProof;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"not_asked", E::kNotAsked},
       {"honoured", E::kHonoured},
       {"refused", E::kRefused},
       {"ignored", E::kIgnored}}};
};
template <>
struct retort::EnumNames<retort::engines::Purpose> {
  using E = retort::engines::Purpose;
  static constexpr std::array<std::pair<std::string_view, E>, 7> values{
      {{"draws_with_ratio", E::kDrawsWithRatio},
       {"draws", E::kDraws},
       {"given_log_probs", E::kGivenLogProbs},
       {"top_k", E::kTopK},
       {"hidden_states", E::kHiddenStates},
       {"rewards", E::kRewards},
       {"words", E::kWords}}};
};
