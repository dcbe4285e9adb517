// Questions to an engine, one after another or together, until a deadline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "engines/contract/engine.h"

namespace retort::engines {

// Each call waits for its answers and checks them (answer_checks.h). Errors carry `what`, the
// question, as context probe=...; questions that are still open then are cancelled.
// Threads: one, and not a loop thread.
class Questions {
 public:
  // `ids`: ids of answers lie below it.
  Questions(Engine& engine, int64_t ids, Deadline deadline);

  Drawn draw(const std::string& what, DrawRequest request);
  std::vector<Drawn> draw_together(const std::string& what, std::vector<DrawRequest> requests);
  Scored score(const std::string& what, ScoreRequest request);
  std::vector<Scored> score_together(const std::string& what, std::vector<ScoreRequest> requests);
  // [R, H] floating point, finite, on the host.
  at::Tensor hidden_states(const std::string& what, ScoreRequest request);
  // [R, N] float32 on the host, log-probabilities.
  at::Tensor log_probs_at(const std::string& what, ScoreRequest request, const at::Tensor& ids);
  // Finite numbers, one for each request.
  std::vector<double> reward_together(const std::string& what, std::vector<RewardRequest> requests);
  // Returns the engine's texts, one for each request, in order.
  std::vector<Written> write_together(const std::string& what, std::vector<WriteRequest> requests);

  int64_t requests() const { return requests_; }
  int64_t tokens() const { return tokens_; }

 private:
  Engine& engine_;
  int64_t ids_;
  Deadline deadline_;
  int64_t requests_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace retort::engines
