// Asks for the log-probabilities after a prefix, of one token that is given and of the most
// probable ones.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/llamacpp/run.h"
#include "engines/llamacpp/session.h"

namespace retort::engines::llamacpp {

struct Position {
  float given = 0;
  std::vector<int32_t> top_ids;  // top_k of them
  std::vector<float> top_log_probs;
};

struct PositionQuestion {
  PromptText ids;
  size_t prefix = 0;  // how many of them come before
  int32_t given = 0;
  int64_t top_k = 0;
};

// One request: the given token is forced (its logit is raised beyond all others) and drawn, and the
// server says the raw log-probability of what it drew. It says nothing of a token that ends within
// a character; that one is looked for among the most probable, in more and more of them: 64, 1024,
// ... up to the whole vocabulary, about 100 bytes each, where another token is forced.
class PositionRun final : public Run<Position> {
 public:
  // After Session::served(), on the loop's thread.
  PositionRun(Session& session, PositionQuestion question, int64_t vocab_rows, Deadline deadline);

 private:
  void begin() override;
  void search(int32_t plain, int64_t num_top);
  Future<Completion> force(int32_t id, int64_t num_top);
  Position position(const Chances& chances, float given) const;

  Session& session_;
  PositionQuestion question_;
  int64_t vocab_rows_;
  Deadline deadline_;
};

}  // namespace retort::engines::llamacpp
