// Draws one completion.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/llamacpp/position.h"
#include "engines/llamacpp/run.h"
#include "engines/llamacpp/session.h"

namespace retort::engines::llamacpp {

// Way of a draw:
//   draw -> cut after our first end token
//     ^       |
//     |       +-- ended at a token that only the server calls an end: draw on from there
//     '-------'
//   then each log-probability that the server left out is asked for (position.h)
class DrawRun final : public Run<Drawn> {
 public:
  DrawRun(Session& session, DrawRequest request, Deadline deadline);

 private:
  void begin() override;
  void draw();
  void take(const Completion& completion, const Json& parameters);
  // True if the completion is over; says why in drawn_.
  bool ends(const Completion& completion);
  void fill_from(size_t at);
  int64_t tokens_left() const;

  Session& session_;
  DrawRequest request_;
  Deadline deadline_;
  int64_t vocab_rows_ = 0;
  std::vector<int32_t> ids_;  // prompt and completion
  uint64_t num_draws_ = 0;
  Drawn drawn_;
};

}  // namespace retort::engines::llamacpp
