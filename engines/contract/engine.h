// An inference engine that is not ours, as a role needs it: it draws completions and says what
// tokens are worth, a sequence at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "base/units.h"
#include "models/generation/request.h"

namespace retort::engines {

// An engine describes itself by this.
struct EngineState {
  std::string version;         // of the program; "" if it does not say
  std::string served_model;    // the name that requests use
  int64_t vocab_rows = 0;      // ids that it knows; 0: unknown
  int64_t context_tokens = 0;  // of prompt and completion together; 0: unknown
};

// The questions that an engine can be asked.
struct Abilities {
  bool draws = false;          // draw()
  bool scores = false;         // score() of given tokens
  int64_t max_top_k = 0;       // largest top_k of score(); 0: none
  bool hidden_states = false;  // hidden_states()
  bool seeds = false;          // the same seed draws the same tokens
  int64_t rewards = 0;         // numbers of which reward() gives one; 0: it cannot be asked
  bool writes = false;         // write()
  int64_t max_named_ids = 0;   // ids of a position that log_probs_at() takes; 0: none
};

struct DrawRequest {
  std::vector<int32_t> prompt;
  // sampling.num_ids and sampling.seed are the caller's; the rest as in a recipe. An engine that
  // cannot honour one of them refuses the request with kInvalidArgument.
  models::DrawOptions how;
  uint64_t seed = 0;  // of this completion
};

struct Drawn {
  std::vector<int32_t>
      token_ids;  // as models::Completion: an end or stop token that was drawn is the last
  // of each token as the engine gives it, natural logarithm; what it means is for the probe to say
  std::vector<float> log_probs;
  models::FinishReason finish_reason = models::FinishReason::kLength;
};

struct ScoreRequest {
  std::vector<int32_t> token_ids;
  // Position p asks for the distribution after token p, whose given token is token p + 1.
  // Increasing; none is the last.
  std::vector<int32_t> positions;
  int64_t top_k = 0;  // 0: only given tokens
};

// Asks for every token but the first, with the top_k after each but the last.
ScoreRequest score_all(std::vector<int32_t> token_ids, int64_t top_k = 0);

// R positions. Log-probabilities are the engine's: natural logarithm, temperature 1 unless the
// probe says otherwise.
struct Scored {
  // [R] of the token after each position; empty where Abilities::scores is false
  std::vector<float> given;
  at::Tensor ids;        // [R, K] int32, by falling log-probability; undefined for top_k 0
  at::Tensor log_probs;  // [R, K] float32
};

// A prompt and its completion, in one sequence.
struct RewardRequest {
  std::vector<int32_t> prompt;
  std::vector<int32_t> completion;
  int64_t label = 0;  // which of the model's numbers
};

// A user's text for a model that talks.
struct WriteRequest {
  std::string text;
  int64_t max_new_tokens = 0;
};

struct Written {
  std::string text;     // of the assistant, without what it thought
  bool cut = false;     // it did not end by itself: at max_new_tokens, or by a filter
  int64_t tokens = 0;   // that it took, as the server counts; 0: it does not say
  std::string refused;  // why the server takes no such question, in its words; else empty
  std::string model;    // that answered, as the server calls it; "" if it does not say
};

// One server. Every answer is checked where it arrives: counts, ids and numbers that cannot be
// (NaN, above 0, a NaN in disguise) are kCorrupt, with the server's address and the field.
//
// Errors, by the future: as http::Client's; kInvalidArgument for what the engine cannot do, with
//   what it can; kMismatch for an answer that belongs to another question.
// Again: a request that the server turned away (429, 503) waits and goes again until `deadline`.
//   One that broke on its way is sent again if it only asks (score); a draw is not: its future
//   fails with kUnavailable, and the caller draws again, knowing that the first draw may still run.
// Threads: any; futures complete on a thread of the engine's, where the caller must not block.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;  // open requests end with kClosed
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // None before the first state() that succeeds, where it is the server that says what there is.
  virtual Abilities abilities() const = 0;
  // Succeeds if the engine is there and serves the model; kUnavailable while it loads.
  virtual Future<EngineState> state(Deadline deadline) = 0;

  virtual Future<Drawn> draw(DrawRequest request, Deadline deadline);
  virtual Future<Scored> score(ScoreRequest request, Deadline deadline);
  // [R, H] final hidden states at the positions, in whatever dtype they come.
  virtual Future<at::Tensor> hidden_states(ScoreRequest request, Deadline deadline);

  // [R, N] float32 log-probabilities of ids that the caller names for each position: `ids` [R, N]
  // int32, at most max_named_ids, on the host. As those of score(): natural logarithm, temperature
  // 1, over the whole vocabulary. request.top_k is not looked at.
  virtual Future<at::Tensor> log_probs_at(ScoreRequest request, at::Tensor ids, Deadline deadline);

  // The reward that the server's model gives a completion: a finite number.
  virtual Future<double> reward(RewardRequest request, Deadline deadline);

  // Asks the server's model for an answer at temperature 0, by its own chat template. A question
  // that the server refuses (too long, filtered) is no error: Written::refused.
  virtual Future<Written> write(WriteRequest request, Deadline deadline);

  // Makes the server use the weights of `path` (a model folder, or a GGUF file: its kind decides),
  // and forget all that it computed with others. When the future completes, every later request is
  // computed with them; whether that is true the caller checks (receipt.h). No request may be open.
  virtual Future<Empty> load_weights(std::string path, Deadline deadline);
};

// True for an error that says the engine is not there, rather than that it is wrong: asked again,
// it or a replica of it may answer.
bool is_absent(const Error& error);
bool is_absent(const std::exception_ptr& error);
// The text of any exception.
std::string message_of(const std::exception_ptr& error);

// For a request that `before` others precede: the engine may take them one by one, each for as long
// as `timeout`. A request that hangs is found by its own limit of an attempt.
Deadline deadline_behind(int64_t before, Duration timeout);

// An address as it may be shown: without user, password and query.
std::string shown_url(const std::string& url);

}  // namespace retort::engines
