// Distillation: divergence of the student from teachers in other processes, at the target
// positions, mixed with cross-entropy.
//   loss = (1 - kd_ratio) * CE + kd_ratio * sum_m w_m D(q_m, p),   sum_m w_m = 1 over the teachers
//       of a sample
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "recipes/distill/draw_ahead.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/metrics/rpc_metrics.h"
#include "roles/teacher/frozen_answers.h"
#include "roles/trainer/trainer.h"
#include "rpc/agent.h"

namespace retort::recipes {

// A teacher of the mixture: its client, weight, and the sample fields it is for (empty: every
// sample).
struct TeacherRoute {
  std::unique_ptr<roles::FrozenAnswers> client;
  double weight = 1.0;
  std::map<std::string, std::string> when;
  at::Tensor head;  // the teacher's, where the student computes; filled at the first use
};

// A payload as the losses read it. `head`: of hidden states, the teacher's.
losses::TeacherSignal to_signal(const roles::Payload& payload, const at::Tensor& head);

// Whether the sample's fields have the values of a `when`.
bool sample_matches(const data::Sample& sample, const std::map<std::string, std::string>& when);

// For each step the requests of the next `prefetch` steps are already in flight. A sample is
// answered by all teachers whose `when` it matches, with their weights normalised to 1; a sample
// that matches none is an error naming it. Where the student names ids (named_ids), the requests in
// flight have the teachers compute ahead, and each micro-batch waits for its answers between its
// forward pass and its loss. Threads: compute. Collectives: none of its own, but for naming ids.
class DistillObjective : public BatchObjective {
 public:
  struct Options {
    losses::DivergenceOptions divergence;  // common_vocab comes from each teacher's handshake
    // Whether the student itself drew the targets of a step, which it is not to learn from: its
    // kd_ratio is 1. Null: never.
    std::function<bool(int64_t step)> is_on_policy;
    // steps whose answers may be in flight beyond the current one
    int64_t prefetch = 2;
    std::optional<DrawAhead> draws = std::nullopt;  // instead: of batches that the student draws
    // above 0: how many ids of its own the student names at each row, for teachers whose payloads
    // need them (PayloadSpec::support)
    int64_t named_ids = 0;
    int64_t dp_rank = 0, dp_size = 1;
    // false: this rank is not where the pipeline ends, so it needs no teacher
    bool asks = true;
    double max_masked_mass = 1e-3;  // mean teacher mass on masked ids above which the run stops
  };
  DistillObjective(StepSource source, rpc::Agent& agent, std::vector<TeacherRoute> teachers,
                   Options options);
  ~DistillObjective() override;

  int64_t lookahead(int64_t step) const override {
    return options_.draws ? options_.draws->asked(step) : options_.prefetch;
  }
  size_t num_values() const override { return kValues; }
  bool loss_falls() const override;

  // Adds eval_kd_loss to the row of an evaluation after row.step: the mean divergence over the
  // target tokens of the batches, of those samples that a teacher is for; nothing if there are
  // none. The teachers are asked for every batch, for one ahead. Collectives: those of the losses,
  // and one all-reduce over dp and pp; every rank calls.
  void evaluate(const roles::Trainer& student, const std::vector<data::MicroBatch>& batches,
                parallel::World& world, MetricsRow& row);

 protected:
  void announce(int64_t step, const data::BatchStream::Step& batches) override;
  at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows,
                        const data::MicroBatch& batch, StepSums& sums) override;
  void add_metrics(const StepSums& sums, MetricsRow& row) override;

 private:
  enum Value : size_t {
    kKd,
    kCe,
    kTeacherMass,
    kStudentMass,
    kMaskedMass,
    kTailBound,
    kEntropy,
    kCorrect,
    kWaitSeconds,
    kBytes,
    kValues
  };
  struct Part;  // the rows of one micro-batch that one teacher answers
  static Part whole_part(const data::MicroBatch& batch);
  static Part part_of(const data::MicroBatch& batch, const std::vector<size_t>& samples);
  // `all_taught`: a sample that no teacher is for is an error, else it is left out.
  std::vector<Part> split(const data::MicroBatch& batch, bool all_taught) const;
  // Splits the batch, and sends a request for each part that has rows.
  std::vector<Part> ask(const data::MicroBatch& batch, uint64_t request_id, int64_t step,
                        bool all_taught);
  // The weighted loss of the parts' rows, whose metrics go to `sums`; waits for their answers.
  at::Tensor loss_of_parts(std::vector<Part> parts, const models::Head& head,
                           const at::Tensor& rows, const at::Tensor& targets,
                           const losses::DivergenceOptions& divergence, StepSums& sums);
  // Tells the part's teacher the largest ids of the student there. With a split vocabulary two
  // all-gathers a chunk on its group.
  void name_ids(std::vector<Part>& parts, const models::Head& head, const at::Tensor& rows);
  // What its teacher has said of the part's rows; waits for the answer.
  losses::TeacherShare receive(Part& part, const at::Device& device, StepSums& sums);
  // Returns the weight of each teacher, with the sum 1; all 0 if none is for the sample.
  std::vector<double> weights_of(const data::Sample& sample) const;

  PeerMetrics peers_;
  std::vector<TeacherRoute> teachers_;
  Options options_;
  // one entry for each announced micro-batch, oldest first
  std::deque<std::vector<Part>> in_flight_;
  std::deque<bool> on_policy_;  // whether its step is, likewise
};

}  // namespace retort::recipes
