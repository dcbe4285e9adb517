// Scores a sequence: one request for each position, in order.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/llamacpp/position.h"
#include "engines/llamacpp/run.h"
#include "engines/llamacpp/session.h"

namespace retort::engines::llamacpp {

class ScoreRun final : public Run<Scored> {
 public:
  ScoreRun(Session& session, ScoreRequest request, Deadline deadline);

 private:
  void begin() override;
  void ended() override;
  void next();
  void add(const Position& position);
  Scored scored() const;

  Session& session_;
  ScoreRequest request_;
  PromptText ids_;
  Deadline deadline_;
  int64_t vocab_rows_ = 0;
  bool under_way_ = false;  // holds a slot
  // of the positions so far
  std::vector<float> given_;
  std::vector<int32_t> top_ids_;
  std::vector<float> top_log_probs_;
};

}  // namespace retort::engines::llamacpp
