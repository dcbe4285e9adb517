#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/aten_teacher.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_loss.h"
#include "recipes/losses/detail/sampled_weights.h"
#include "recipes/losses/detail/teacher_checks.h"

namespace retort::losses::detail {
namespace {

class DistillChunks : public ChunkLoss {
 public:
  DistillChunks(const VocabGroup& vocab, const at::Tensor& targets, AtenTeacher& teacher,
                const DivergenceOptions& options)
      : vocab_(vocab),
        targets_(targets),
        teacher_(teacher),
        kd_ratio_(options.kd_ratio),
        kd_factor_(kd_factor(options)),
        loss_(row_loss(options)),
        sums_(at::zeros({7}, targets.options().dtype(at::kDouble))) {}

  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool gradient) override {
    loss_.gradient = gradient;
    if (run_kernel(begin, count, logits, GradientDtype::kFloat32)) return;
    TargetSoftmax softmax(vocab_, targets_.narrow(0, begin, count), logits);
    const DivergenceRows rows = teacher_.chunk(begin, logits, softmax, loss_);
    sums_.add_(at::stack({rows.kd, softmax.log_prob(), rows.teacher_mass, rows.student_mass,
                          rows.masked_mass, softmax.entropy(), softmax.correct()})
                   .sum(1));
  }
  at::Tensor rounded_chunk(int64_t begin, int64_t count, at::Tensor logits) override {
    loss_.gradient = true;
    if (run_kernel(begin, count, logits, GradientDtype::kBfloat16)) return over_front(logits);
    return ChunkLoss::rounded_chunk(begin, count, logits);
  }
  at::Tensor loss_sum() const override { return mixed_loss(kd_ratio_, kd_sum(), ce_sum()); }
  // The numbers in the order in which DistillSums::of() reads them; `refused` is code_of_first() of
  // the teacher's rows.
  at::Tensor numbers(const at::Tensor& refused) const {
    return at::stack({kd_sum(), ce_sum(), sum(2), sum(3), sum(4), sum(5), sum(6), refused});
  }

 private:
  // False if there is no kernel for these logits.
  bool run_kernel(int64_t begin, int64_t count, const at::Tensor& logits, GradientDtype gradient) {
    const at::Tensor rows =
        teacher_.kernel_rows(begin, logits, targets_.narrow(0, begin, count), loss_, gradient);
    if (rows.defined()) sums_.add_(rows.sum(1));
    return rows.defined();
  }
  at::Tensor sum(int64_t i) const { return sums_.select(0, i); }
  at::Tensor kd_sum() const { return sum(0) * kd_factor_; }
  at::Tensor ce_sum() const { return -sum(1); }

  const VocabGroup& vocab_;
  at::Tensor targets_;
  AtenTeacher& teacher_;
  double kd_ratio_;
  double kd_factor_;
  RowLoss loss_;
  at::Tensor sums_;  // [7] in the order of chunk()
};

WeightedIds moved_weights(const at::Device& device, const WeightedIds& weighted) {
  const auto moved = [&](const at::Tensor& tensor) { return moved_to(device, tensor); };
  return {.ids = std::get<TeacherTopK>(moved_to(device, TeacherSignal(weighted.ids))),
          .distinct = moved(weighted.distinct),
          .scale = moved(weighted.scale),
          .offset = moved(weighted.offset)};
}

std::unique_ptr<AtenTeacher> make_teacher(const TeacherSignal& signal, const VocabGroup& vocab,
                                          int64_t common, const DivergenceOptions& options) {
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal))
    return make_aten_top_k(*top_k, vocab, common);
  if (const auto* full = std::get_if<TeacherFull>(&signal))
    return make_aten_dense(*full, vocab, common);
  return make_aten_dense(std::get<TeacherHidden>(signal), vocab, common, options);
}

}  // namespace

UnreadDistill aten_distill(const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& targets,
                           const TeacherSignal& signal, const DivergenceOptions& options,
                           const parallel::VocabShard& shard, double softcap) {
  const LinearHead head{hidden, weight, bias, softcap};
  std::optional<VocabGroup> vocab;
  int64_t common = 0;
  TeacherSignal there;                  // the signal on hidden's device
  std::optional<WeightedIds> weighted;  // of draws, there
  at::Tensor status;                    // of its rows
  check_together(shard, [&] {
    options.validate();
    check_head(head, targets, vocab_total(shard, weight));
    vocab.emplace(shard, head.vocab());
    common = common_ids(options, vocab->total());
    check_divergence(signal, options);
    check_signal(signal, {head.rows(), common, vocab->own_below(common), hidden.device()});
    if (const auto* sampled = std::get_if<TeacherSampled>(&signal)) {
      weighted = moved_weights(hidden.device(), weigh(*sampled, common));
      there = weighted->ids;
    } else {
      there = moved_to(hidden.device(), signal);
    }
    if (const auto* top_k = std::get_if<TeacherTopK>(&there)) status = top_k_status(*top_k, common);
    if (status.defined() && status.is_cpu()) refuse_first(status);
  });

  // A teacher's row that is no distribution is refused only after the last chunk: until then every
  // rank has to take part in each chunk's reductions.
  const auto teacher = weighted ? make_aten_sampled(*weighted, *vocab, common)
                                : make_teacher(there, *vocab, common, options);
  DistillChunks chunks(*vocab, moved_to(hidden.device(), targets).contiguous(), *teacher, options);
  const int64_t rows_at_once = aten_chunk_rows(
      options.chunk_tokens, vocab->rows_per_rank() + teacher->floats_per_row(), hidden.device());
  const at::Tensor loss_sum = run_linear_head(head, rows_at_once, chunks);

  // A status in host memory is looked at now. Looking at that of a device would wait for it, so its
  // code travels with the numbers, which are read later.
  if (!status.defined()) status = teacher->status();
  if (status.is_cpu()) refuse_first(status);
  return {
      .loss_sum = loss_sum, .count = head.rows(), .numbers = chunks.numbers(code_of_first(status))};
}

DistillResult read(UnreadDistill loss) {
  const at::Tensor numbers = loss.numbers.cpu();
  return {DistillSums::of(numbers.const_data_ptr<double>()), std::move(loss.loss_sum), loss.count};
}

}  // namespace retort::losses::detail
