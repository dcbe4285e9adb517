// An engine in this process, over our own decoder, that lies in the way a test chooses.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/contract/contract.h"
#include "engines/contract/engine.h"
#include "models/decoder/decoder.h"

namespace retort::engines {

struct Lies {
  DrawnMeaning drawn = DrawnMeaning::kRaw;  // what log-probabilities of drawn tokens are
  double drawn_scale = 1;                   // and their factor at other temperatures than 1
  int32_t ids_off = 0;                      // the decoder's id of our id i is i + ids_off
  int32_t answer_ids_off = 0;               // ids of answers alone
  const models::Decoder* stale = nullptr;   // computes what was asked before
  float batch_noise = 0;                    // nats, beside another sequence of the same length
  float noise_of_repeats = 0;               // nats, more with each question
  bool forget_seeds = false;                // every draw has a seed of its own
  bool one_seed = false;                    // all draws have the same
  bool ignore_top_p = false;
  bool ignore_ends = false;
  bool nan = false;
  bool short_top_k = false;  // one id fewer than asked
  bool half_mass = false;    // probabilities that sum to a half
  bool never_draw = false;   // a draw that does not end
  bool refuse_min_p = false;
  double score_temperature = 1;
  double hidden_scale = 1;
  int named_rows_off = 0;      // ids that are named for a position are scored at another
  bool named_columns = false;  // numbers of named ids fall, whatever their order was
  bool named_logits = false;   // they are not normalised

  // What it says of itself, truly.
  int64_t vocab_rows = 0;  // 0: the decoder's
  std::optional<int64_t> max_top_k;
  bool draws = true, scores = true, log_probs = true, names = true;
  int64_t context_tokens = 512;
};

// Answers are there when a call returns. Threads: one.
class FakeEngine final : public Engine {
 public:
  FakeEngine(const models::Decoder& decoder, Lies lies);

  Abilities abilities() const override;
  Future<EngineState> state(Deadline deadline) override;
  Future<Drawn> draw(DrawRequest request, Deadline deadline) override;
  Future<Scored> score(ScoreRequest request, Deadline deadline) override;
  Future<at::Tensor> hidden_states(ScoreRequest request, Deadline deadline) override;
  Future<at::Tensor> log_probs_at(ScoreRequest request, at::Tensor ids, Deadline deadline) override;

  int64_t requests() const { return requests_; }

 private:
  Drawn answer(const DrawRequest& request);
  Scored answer(const ScoreRequest& request);
  // [R, V] float64 log-probabilities after the positions, at a temperature.
  at::Tensor log_probs(const models::Decoder& decoder, const std::vector<int32_t>& ids,
                       const std::vector<int32_t>& positions, double temperature) const;
  int64_t rows() const;
  int32_t inner(int32_t id) const;  // of the decoder
  int32_t outer(int32_t id) const;  // of answers
  std::vector<int32_t> inner(std::vector<int32_t> ids) const;
  void check_ids(const std::vector<int32_t>& ids) const;

  const models::Decoder& decoder_;
  const Lies lies_;
  int64_t requests_ = 0;
  std::vector<int32_t> scored_before_;
  std::set<std::vector<int32_t>> seen_;
  std::optional<uint64_t> seed_before_;
  std::vector<Promise<Drawn>> unanswered_;
};

}  // namespace retort::engines
