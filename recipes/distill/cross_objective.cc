#include "recipes/distill/cross_objective.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "models/ops/packed.h"
#include "recipes/distill/objective.h"
#include "recipes/run/loop/metric_sums.h"
#include "recipes/run/rank/request_id.h"

namespace retort::recipes {
namespace {

// So many micro-batches of an evaluation have answers in flight beyond the current one.
constexpr uint64_t kAskedAhead = 1;

bool is_one_to_one(const losses::TokenGroup& group) {
  return group.student_end - group.student_begin == 1 &&
         group.teacher_end - group.teacher_begin == 1;
}

}  // namespace

CrossTokenizerObjective::CrossTokenizerObjective(StepSource source, rpc::Agent& agent,
                                                 std::unique_ptr<roles::FrozenAnswers> teacher,
                                                 std::shared_ptr<const TwoTokenizers> both,
                                                 Options options)
    : BatchObjective(std::move(source)),
      peers_(agent),
      teacher_(std::move(teacher)),
      both_(std::move(both)),
      options_(std::move(options)) {
  // Ids that no token of the teacher's has are rows of padding; the handshake knows them.
  if (teacher_) options_.uld.teacher_ids = teacher_->common_vocab();
  options_.uld.validate();
}
CrossTokenizerObjective::~CrossTokenizerObjective() = default;

CrossTokenizerObjective::Asked CrossTokenizerObjective::ask(const data::MicroBatch& batch,
                                                            uint64_t request_id, int64_t step) {
  Asked asked{.aligned = align(batch, *both_), .pending = {}};
  if (asked.aligned.groups.empty()) return asked;
  const data::MicroBatch& teacher = asked.aligned.teacher;
  asked.pending = teacher_->send(request_id, step, teacher.tokens, teacher.predict_positions);
  asked.is_sent = true;
  return asked;
}

void CrossTokenizerObjective::announce(int64_t step, const data::BatchStream::Step& batches) {
  StepWeights weights;
  weights.is_on_policy = options_.is_on_policy && options_.is_on_policy(step);
  const uint64_t count = batches.micro_batches.size();
  for (uint64_t i = 0; i < count; ++i) {
    const data::MicroBatch& batch = batches.micro_batches[i];
    weights.samples += static_cast<double>(batch.samples.size());
    weights.targets += static_cast<double>(batch.num_targets());
    if (!options_.asks) continue;
    in_flight_.push_back(
        ask(batch, request_id(step, i, count, options_.dp_rank, options_.dp_size), step));
  }
  steps_.push_back(weights);
}

// The loss is divided by samples once, so the cross-entropy of a token weighs samples / tokens.
void CrossTokenizerObjective::begin_step(parallel::Group& dp) {
  RETORT_CHECK(!steps_.empty()) << "begin_step of a step that was not announced";
  const StepWeights step = steps_.front();
  steps_.pop_front();
  uld_ = options_.uld;
  if (step.is_on_policy || options_.kd_ratio == 1) return;
  at::Tensor sums = at::tensor({step.samples, step.targets}, at::kDouble);
  if (dp.size() > 1) dp.all_reduce(sums);
  const double* sum = sums.const_data_ptr<double>();
  uld_.kd_weight = options_.kd_ratio;
  uld_.ce_weight = sum[1] > 0 ? (1 - options_.kd_ratio) * sum[0] / sum[1] : 0;
}

losses::TeacherSignal CrossTokenizerObjective::receive(Asked& asked, const at::Device& device,
                                                       StepSums& sums) {
  // Nothing was asked of a micro-batch without a group, whose rows are compared with none.
  if (!asked.is_sent) return losses::TeacherFull{at::empty({0, 1}, at::kFloat)};
  // The teacher's head comes to the device once, with its first answer.
  if (!head_.defined() && teacher_->head_weight().defined())
    head_ = teacher_->head_weight().to(device);
  return to_signal(teacher_->receive(std::move(asked.pending), &sums.values[kWaitSeconds]), head_);
}

at::Tensor CrossTokenizerObjective::loss_of(Asked asked, const models::Head& head,
                                            const at::Tensor& rows, const at::Tensor& targets,
                                            const losses::UldOptions& uld, StepSums& sums) {
  const losses::TeacherSignal signal = receive(asked, rows.device(), sums);
  const auto& groups = asked.aligned.groups;
  // Where nothing was asked, there is no vocabulary of the teacher's either.
  losses::UldOptions used = uld;
  if (!asked.is_sent) {
    used.matched.reset();
    used.teacher_ids = 0;
  }
  const at::Tensor teacher_targets =
      asked.is_sent ? asked.aligned.teacher.targets : at::empty({0}, at::kLong);
  const losses::UnreadUld result =
      losses::unread_uld(rows, head.weight, {}, targets, signal, teacher_targets, groups, used,
                         head.vocab, head.softcap);

  for (const losses::TokenGroup& group : groups) {
    sums.values[is_one_to_one(group) ? kOneToOneGroups : kMergedGroups] += 1;
    sums.values[kAlignedTokens] += static_cast<double>(group.student_end - group.student_begin);
  }
  sums.values[kGroups] += static_cast<double>(groups.size());
  sums.values[kUnaligned] += static_cast<double>(asked.aligned.num_unaligned);
  sums.late.add(result.numbers, [&sums](const double* numbers) {
    const auto said = losses::UldSums::of(numbers);
    sums.values[kKd] += said.kd_sum;
    sums.values[kOneToOne] += said.one_to_one_sum;
    sums.values[kMerged] += said.merged_sum;
    sums.values[kMatched] += said.matched_sum;
    sums.values[kUnmatched] += said.unmatched_sum;
    sums.values[kCe] += said.ce_sum;
    sums.values[kEntropy] += said.entropy_sum;
  });
  return result.loss_sum;
}

at::Tensor CrossTokenizerObjective::batch_loss(const models::Head& head, const at::Tensor& rows,
                                               const data::MicroBatch& batch, StepSums& sums) {
  RETORT_CHECK(!in_flight_.empty()) << "loss_sum of a micro-batch that was not announced";
  Asked asked = std::move(in_flight_.front());
  in_flight_.pop_front();
  sums.count += static_cast<double>(batch.samples.size());
  sums.values[kTargets] += static_cast<double>(batch.num_targets());
  // The sums of a step are added over dp and pp, not over tp, but each tp rank asks for a part of
  // its own.
  sums.values[kBytes] +=
      peers_.new_bytes() * (head.vocab.group == nullptr ? 1 : head.vocab.group->size());
  return loss_of(std::move(asked), head, rows, batch.targets, uld_, sums);
}

void CrossTokenizerObjective::evaluate(const roles::Trainer& student,
                                       const std::vector<data::MicroBatch>& batches,
                                       parallel::World& world, MetricsRow& row) {
  const c10::NoGradGuard no_grad;
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  const uint64_t count = batches.size();
  std::deque<Asked> asked;
  for (uint64_t i = 0, next = 0; i < count; ++i) {
    // The teacher is asked ahead, so that it answers while the student computes.
    for (; options_.asks && next < count && next <= i + kAskedAhead; ++next) {
      const uint64_t id = request_id(row.step, next, count, options_.dp_rank, options_.dp_size);
      asked.push_back(ask(batches[next], kFirstEvaluationRequest + id, row.step));
    }
    Asked of_batch;
    if (options_.asks) {
      of_batch = std::move(asked.front());
      asked.pop_front();
    }

    const data::MicroBatch& batch = batches[i];
    if (batch.num_targets() == 0) continue;
    const at::Tensor rows = student.hidden(models::wanting(batch.tokens, batch.predict_positions));
    if (!rows.defined()) continue;  // the pipeline ends elsewhere
    sums.count += static_cast<double>(batch.samples.size());
    loss_of(std::move(of_batch), student.decoder().head(), rows, batch.targets, options_.uld, sums);
  }
  sums.late.read();
  peers_.new_bytes();  // which are no step's

  all_reduce(sums, world.dp_pp());
  if (sums.count > 0) row.add("eval_kd_loss", sums.values[kKd] / sums.count);
}

void CrossTokenizerObjective::add_metrics(const StepSums& sums, MetricsRow& row) {
  static constexpr std::array<MeanMetric, 7> kMetrics{
      {{"kd_loss", kKd},
       {"one_to_one_loss", kOneToOne, kOneToOneGroups},
       {"merged_loss", kMerged, kMergedGroups},
       {"ce_loss", kCe, kTargets},
       {"entropy", kEntropy, kTargets},
       {"one_to_one_groups", kOneToOneGroups, kGroups},
       {"aligned_tokens", kAlignedTokens, kTargets}}};
  add_means(kMetrics, sums, sums.count, row);
  if (options_.uld.matched) {
    static constexpr std::array<MeanMetric, 2> kGold{
        {{"matched_loss", kMatched, kGroups}, {"unmatched_loss", kUnmatched, kGroups}}};
    add_means(kGold, sums, sums.count, row);
  }
  if (sums.values[kUnaligned] > 0)
    row.add("num_unaligned", static_cast<int64_t>(sums.values[kUnaligned]));
  // The sums are those of all dp ranks, so this is what one of them waited on average.
  row.add("teacher_wait_time", sums.values[kWaitSeconds] / static_cast<double>(options_.dp_size));
  peers_.add_bytes_per_token(row, sums.values[kBytes], sums.num_tokens);
  if (options_.asks) peers_.add_calls(row);  // else this rank asks no teacher
}

}  // namespace retort::recipes
