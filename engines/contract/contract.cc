#include "engines/contract/contract.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "engines/contract/traits.h"

namespace retort::engines {
namespace {

// Differences of one engine to itself, or to a copy of its model. bfloat16 arithmetic stays below
// on average, and its single numbers below the second; other weights, ids or meanings do not.
constexpr double kLargestMean = 0.1;        // nats
constexpr double kLargestDifference = 1.0;  // nats
constexpr double kLargestHidden = 0.05;     // relative
constexpr double kMassError = 1e-3;
constexpr double kRewardShare = 0.02;  // of the reward, or of 1 for smaller ones

std::string nats(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g nats", value);
  return text;
}

// How far a reward may be off when it is asked for again.
double reward_limit(const Contract& contract, double reward) {
  return contract.tolerance_given ? contract.tolerance
                                  : kRewardShare * std::max(1.0, std::abs(reward));
}

class Check {
 public:
  Check(const Contract& contract, const Needs& needs) : contract_(contract), needs_(needs) {}

  void run() const {
    // An engine that is asked in words shows no ids, so nothing else can be compared.
    if (needs_.what == Purpose::kWords) return check_words();
    // Hidden states come first: where no server of this engine gives them, advice about anything
    // else would lead nowhere.
    if (needs_.what == Purpose::kHiddenStates) check_gives_hidden_states();
    check_vocabulary();
    check_ids();
    check_context();
    // A reward is a number of its own, of which log-probabilities say nothing.
    if (needs_.what == Purpose::kRewards) return check_rewards();
    check_steadiness();
    if (needs_.seeds) check_seeds();

    switch (needs_.what) {
      case Purpose::kDrawsWithRatio:
        check_draws();
        check_ratio();
        break;
      case Purpose::kDraws: check_draws(); break;
      case Purpose::kGivenLogProbs: check_scores(); break;
      case Purpose::kTopK:
        check_scores();
        if (needs_.names_ids)
          check_named();
        else
          check_top_k();
        break;
      case Purpose::kHiddenStates: check_hidden_states(); break;
      case Purpose::kRewards:
      case Purpose::kWords: break;
    }
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    throw Error(code, "role '" + needs_.role + "' (" + needs_.objective + "): " + what)
        .with("engine", enum_name(contract_.engine))
        .with("url", contract_.url);
  }
  [[noreturn]] void mismatch(const std::string& what) const { fail(ErrorCode::kMismatch, what); }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::kInvalidArgument, what);
  }

  void check_vocabulary() const {
    if (contract_.vocab_rows > 0 && contract_.vocab_rows < contract_.tokenizer_ids)
      mismatch("the engine knows " + std::to_string(contract_.vocab_rows) + " ids, and " +
               std::to_string(contract_.tokenizer_ids) +
               " are needed; serve the model that the tokenizer belongs to");
    if (!contract_.highest_id)
      mismatch("the engine does not take the tokenizer's highest id " +
               std::to_string(contract_.tokenizer_ids - 1) +
               "; serve the model that the tokenizer belongs to");
  }

  void check_ids() const {
    if (contract_.ids == IdProof::kRefuted)
      mismatch("the engine's ids are not the tokenizer's: " + contract_.ids_why +
               "; serve the model that the tokenizer belongs to, or correct `tokenizer`");
    // A model that only gives a number for a sequence shows no ids.
    if (contract_.ids == IdProof::kUnproven && needs_.what != Purpose::kRewards)
      mismatch("nothing shows that the engine's ids are the tokenizer's: " + contract_.ids_why +
               "; put the model's weights into the tokenizer's folder (`retort probe URL`: name a "
               "folder that has them with --model), so that they are compared");
  }

  void check_context() const {
    if (contract_.context_tokens > 0 && contract_.context_tokens < needs_.context_tokens)
      refuse("prompt and completion may have " + std::to_string(needs_.context_tokens) +
             " tokens, and the engine takes " + std::to_string(contract_.context_tokens) +
             "; start it with a longer context, or lower max_length or max_new_tokens");
  }

  // The same tokens must have the same log-probability, whatever else the engine does.
  void check_steadiness() const {
    steady(contract_.warmed, "when the engine saw the prompt before",
           "its prefix cache holds what other weights computed: reset it, or switch it off");
    steady(contract_.repeated, "when the same question is asked again", "the engine is not steady");
    steady(contract_.extended, "when more tokens follow",
           "its prefix cache holds what other weights computed: reset it, or switch it off");
    steady(contract_.batched, "beside other requests",
           "its numbers depend on the batch: serve in a wider type, or with batch invariance on");
    steady(contract_.local, "in the local copy",
           "the engine serves another model, or in a narrower type; compare with what it serves");
    // At temperature 1 every meaning is the raw one.
    if (needs_.what == Purpose::kDraws || needs_.what == Purpose::kDrawsWithRatio)
      steady(contract_.drawn_and_scored, "when they are drawn and when they are scored",
             "ids of completions are not those of prompts, or one of both is computed with other "
             "weights");
    if (contract_.whole_mass && std::abs(*contract_.whole_mass - 1) > kMassError)
      mismatch("probabilities over the engine's whole vocabulary sum to " +
               std::to_string(*contract_.whole_mass) +
               " instead of 1; serve raw log-probabilities");
  }

  void steady(const Difference& found, const std::string& when, const std::string& remedy) const {
    if (found.count == 0) return;
    const double limit = contract_.tolerance_given ? contract_.tolerance : kLargestDifference;
    if (found.largest <= limit && found.mean <= kLargestMean) return;
    mismatch("log-probabilities of the same tokens differ " + when + ", by " + nats(found.largest) +
             " at most and " + nats(found.mean) + " on average (allowed: " + nats(limit) + " and " +
             nats(kLargestMean) + "); " + remedy);
  }

  void check_seeds() const {
    if (!contract_.draws) return;
    if (!contract_.seeds_repeat.value_or(false))
      refuse(
          "the run must be repeatable, and the same seed draws other tokens; an engine that "
          "honours `seed` would do");
    if (!contract_.seeds_in_batch.value_or(false))
      refuse(
          "the run must be repeatable, and the same seed draws other tokens beside other "
          "requests; an engine with batch invariance would do");
  }

  void check_draws() const {
    if (!contract_.draws) refuse("completions are needed, and this engine draws none");
    const models::SamplingOptions& how = needs_.sampling;
    if (how.temperature > 0 && !contract_.seeds_differ.value_or(true))
      mismatch(
          "different seeds draw the same tokens, so that all completions of a prompt would be "
          "one; switch off what fixes the engine's seed");
    if (truncated() && !contract_.truncates.value_or(false))
      refuse("tokens are drawn with " + truncation_text() +
             ", and the engine draws tokens that it excludes; use top_p 1, top_k 0 and min_p 0");
    if (contract_.ends == EndProof::kIgnored)
      mismatch("the engine draws on after an end token that it was given (" + contract_.ends_why +
               "); another version or engine would do");
  }

  bool truncated() const {
    const models::SamplingOptions& how = needs_.sampling;
    return how.temperature > 0 && (how.top_p < 1 || how.top_k > 0 || how.min_p > 0);
  }

  std::string truncation_text() const {
    const models::SamplingOptions& how = needs_.sampling;
    if (how.top_p < 1) return "top_p " + std::to_string(how.top_p);
    if (how.top_k > 0) return "top_k " + std::to_string(how.top_k);
    return "min_p " + std::to_string(how.min_p);
  }

  // "start vLLM with --max-logprobs"
  std::string start_with(std::string_view flag) const {
    return "start " + std::string(traits_of(contract_.engine).program) + " with " +
           std::string(flag);
  }

  // "; use ..., or ..." for each engine.
  std::string ratio_remedy() const {
    const std::string plain = "use temperature 1, top_p 1, top_k 0 and min_p 0, or ";
    const EngineTraits& traits = traits_of(contract_.engine);
    if (traits.processed_flag.empty())
      return plain + "vLLM with --logprobs-mode processed_logprobs";
    return plain + start_with(traits.processed_flag);
  }

  void check_ratio() const {
    const models::SamplingOptions& how = needs_.sampling;
    // A ratio needs the probability with which a token was drawn, exactly. Settings for which no
    // engine gives it are refused first, then those of this engine's meaning.
    const std::string need = needs_.objective +
                             " needs the log-probability of drawn tokens under the distribution "
                             "they are drawn from; ";
    if (how.temperature == 0) refuse(need + "at temperature 0 there is none: set a temperature");
    if (how.repetition_penalty != 1)
      refuse(need +
             "with a repetition penalty no engine is known to give it: use "
             "repetition_penalty 1");
    if (how.penalises_generated())
      refuse(need +
             "with penalties of what was drawn no engine is known to give it: use presence_penalty "
             "0 and frequency_penalty 0");

    switch (contract_.drawn) {
      case DrawnMeaning::kNone: refuse(need + "this engine gives none: use another engine");
      case DrawnMeaning::kUnknown:
        refuse(need + "what this engine's are is unknown (" + contract_.drawn_why +
               "): " + ratio_remedy());
      case DrawnMeaning::kRaw:
        if (how.temperature != 1 || truncated())
          refuse(need + "this engine's are raw, of temperature 1 and the whole vocabulary: " +
                 ratio_remedy());
        return;
      case DrawnMeaning::kTempered:
        if (truncated())
          refuse(need + "this engine's are of the whole vocabulary, and tokens are drawn with " +
                 truncation_text() + ": use top_p 1, top_k 0 and min_p 0, or " +
                 "vLLM with --logprobs-mode processed_logprobs");
        return;
      case DrawnMeaning::kProcessed: return;
    }
  }

  void check_scores() const {
    if (!contract_.scores)
      refuse(
          "log-probabilities of given tokens are needed, and this engine gives none; vLLM, SGLang "
          "and llama.cpp do");
  }

  void check_top_k() const {
    // Ids that only the engine's head has may be among the most probable ones. They are left out
    // later, so as many more are needed.
    const int64_t padded = std::max<int64_t>(0, contract_.vocab_rows - contract_.tokenizer_ids);
    const int64_t top_k = std::min(needs_.top_k + std::min(kMaxMaskedIds, padded),
                                   std::max(needs_.top_k, contract_.vocab_rows));
    const std::string_view flag = traits_of(contract_.engine).top_k_flag;
    if (contract_.top_k < top_k)
      refuse("the " + std::to_string(top_k) + " most probable tokens are needed" +
             (top_k > needs_.top_k ? " (" + std::to_string(top_k - needs_.top_k) +
                                         " for ids of the engine's head that the tokenizer lacks)"
                                   : std::string()) +
             ", and this engine gives " + std::to_string(contract_.top_k) + "; lower top_k, or " +
             (flag.empty() ? std::string("take an engine that gives more")
                           : start_with(flag) + " " + std::to_string(top_k)));
    // At another temperature than 1 the tail follows from the engine's numbers only if they are of
    // all ids: then there is no tail.
    const bool whole = contract_.whole_mass && needs_.top_k >= contract_.vocab_rows;
    if (needs_.temperature != 1 && needs_.tail_mass && !whole)
      refuse(
          needs_.objective + " needs the teacher's mass outside the top-k at temperature " +
          std::to_string(needs_.temperature) +
          "; this engine's log-probabilities are of temperature 1, from which only a bound of it "
          "follows: use tail: renormalize, or temperature 1");
  }

  // The probe has compared the numbers with the engine's own top-k; whether they agree is the last
  // check here.
  void check_named() const {
    if (contract_.named_ids == 0)
      refuse(
          "log-probabilities at ids that the student names are needed, and this engine gives "
          "none" +
          (contract_.named_why.empty() ? std::string() : " (" + contract_.named_why + ")") +
          "; use support: teacher, or a teacher of ours (`model`)");

    // Beside the student's ids those that the tokenizer lacks, so that their mass is known.
    const int64_t lacking = std::max<int64_t>(0, contract_.vocab_rows - contract_.tokenizer_ids);
    const int64_t wanted = needs_.top_k + lacking;
    if (contract_.named_ids < wanted)
      refuse(std::to_string(wanted) + " ids of a position are named (loss_top_k " +
             std::to_string(needs_.top_k) + ", and " + std::to_string(lacking) +
             " that the tokenizer lacks), and this engine takes " +
             std::to_string(contract_.named_ids) + "; start vLLM with --max-logprobs " +
             std::to_string(wanted) + ", or lower loss_top_k");
    if (needs_.temperature != 1)
      refuse(
          "log-probabilities at ids that the student names are those at temperature 1, and "
          "temperature is " +
          std::to_string(needs_.temperature) + "; use temperature 1, or support: teacher");
    steady(contract_.named, "when their ids are named and when the engine lists them",
           "what it says of named ids is something else: use support: teacher");
  }

  void check_gives_hidden_states() const {
    if (contract_.gives_hidden_states) return;
    const std::string why =
        traits_of(contract_.engine).hidden_states
            ? "this server's model has no output hidden_states"
            : "engine: " + std::string(enum_name(contract_.engine)) + " never gives them";
    refuse("hidden states are needed, and " + why +
           "; use payload: topk, a teacher of ours (`model`), or a KServe server (Triton) whose "
           "model has the output hidden_states");
  }

  void check_hidden_states() const {
    if (needs_.hidden_size > 0 && contract_.hidden_size != needs_.hidden_size)
      mismatch("hidden states of width " + std::to_string(needs_.hidden_size) +
               " are expected, and the engine's have " + std::to_string(contract_.hidden_size) +
               "; serve the model that the tokenizer's folder describes");
    if (contract_.hidden_difference && *contract_.hidden_difference > kLargestHidden)
      mismatch("hidden states differ from the local copy's by " +
               std::to_string(*contract_.hidden_difference) +
               " of their length; they must be those after the final norm");
  }

  void check_rewards() const {
    if (contract_.rewards == 0)
      refuse(
          "a number for a completion is needed, and this engine gives none; a KServe server "
          "whose model has the output scores does");
    if (needs_.label >= contract_.rewards)
      refuse("label is " + std::to_string(needs_.label) + ", and the engine's completions get " +
             std::to_string(contract_.rewards) + " numbers, counted from 0");
    steady_rewards(contract_.reward_repeated, "is asked about again",
                   "the model is not steady: switch off what it draws at random (dropout)");
    steady_rewards(contract_.reward_batched, "is asked about beside others",
                   "its numbers depend on the batch: serve in a wider type");
  }

  void steady_rewards(const Difference& found, const std::string& when,
                      const std::string& remedy) const {
    const double limit = reward_limit(contract_, contract_.reward.value_or(0));
    if (found.largest <= limit) return;
    mismatch("the reward of a completion differs by " + std::to_string(found.largest) +
             " when it " + when + " (allowed: " + std::to_string(limit) + "); " + remedy);
  }

  void check_words() const {
    if (!contract_.writes)
      refuse("an answer in words is needed, and this engine gives none; use engine: openai");
    if (!contract_.words_stop_at_limit.value_or(false))
      mismatch("the engine writes on after max_tokens; is it a server of chat completions?");
    if (contract_.context_tokens > 0 && contract_.context_tokens <= needs_.answer_tokens)
      refuse("answers may have " + std::to_string(needs_.answer_tokens) +
             " tokens (max_new_tokens), and the engine takes " +
             std::to_string(contract_.context_tokens) + " with the question");
  }

  const Contract& contract_;
  const Needs& needs_;
};

}  // namespace

double reward_tolerance(const Contract& contract) {
  if (contract.tolerance_given) return contract.tolerance;
  const double largest =
      std::max(contract.reward_repeated.largest, contract.reward_batched.largest);
  return std::max(1e-4 * std::max(1.0, std::abs(contract.reward.value_or(0))), 4 * largest);
}

Allowed allowed_of_replicas(const Contract& contract, double reward) {
  const double limit = reward_limit(contract, reward);  // one number, which is its mean
  return {.largest = limit, .mean = limit};
}

Allowed allowed_of_replicas(const Contract& contract) {
  return {.largest = contract.tolerance_given ? contract.tolerance : kLargestDifference,
          .mean = kLargestMean};
}

Allowed allowed_of_weights(const Contract& contract) {
  if (contract.tolerance_given) return {.largest = contract.tolerance, .mean = kLargestMean};
  double mean = contract.drawn == DrawnMeaning::kUnknown ? 0 : contract.drawn_and_scored.mean;
  for (const Difference& found :
       {contract.repeated, contract.warmed, contract.extended, contract.batched, contract.local})
    mean = std::max(mean, found.mean);
  return {.largest = contract.tolerance, .mean = std::min(kLargestMean, std::max(1e-4, 4 * mean))};
}

void check_contract(const Contract& contract, const Needs& needs) { Check(contract, needs).run(); }

}  // namespace retort::engines
