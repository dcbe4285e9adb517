#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/aten_teacher.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_loss.h"
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
    TargetSoftmax softmax(vocab_, targets_.narrow(0, begin, count), logits);
    const DivergenceRows rows = teacher_.chunk(begin, logits, softmax, loss_);
    sums_.add_(at::stack({rows.kd, softmax.log_prob(), rows.teacher_mass, rows.student_mass,
                          rows.masked_mass, softmax.entropy(), softmax.correct()})
                   .sum(1));
  }
  double loss_sum() const override { return mixed_loss(kd_ratio_, kd_factor_ * sum(0), -sum(1)); }

  // All but loss_sum and count.
  DistillResult result() const {
    DistillResult r;
    r.kd_sum = kd_factor_ * sum(0);
    r.ce_sum = -sum(1);
    r.teacher_mass_sum = sum(2);
    r.student_mass_sum = sum(3);
    r.masked_mass_sum = sum(4);
    r.entropy_sum = sum(5);
    r.num_correct = static_cast<int64_t>(sum(6));
    return r;
  }

 private:
  double sum(int64_t i) const { return sums_.select(0, i).item<double>(); }

  const VocabGroup& vocab_;
  at::Tensor targets_;
  AtenTeacher& teacher_;
  double kd_ratio_;
  double kd_factor_;
  RowLoss loss_;
  at::Tensor sums_;  // [7] in the order of chunk()
};

std::unique_ptr<AtenTeacher> make_teacher(const TeacherSignal& signal, const VocabGroup& vocab,
                                          int64_t common, const DivergenceOptions& options) {
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal))
    return make_aten_top_k(*top_k, vocab, common);
  if (const auto* full = std::get_if<TeacherFull>(&signal))
    return make_aten_dense(*full, vocab, common);
  return make_aten_dense(std::get<TeacherHidden>(signal), vocab, common, options);
}

}  // namespace

DistillResult aten_distill(const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& targets,
                           const TeacherSignal& signal, const DivergenceOptions& options,
                           const parallel::VocabShard& shard) {
  const LinearHead head{hidden, weight, bias};
  std::optional<VocabGroup> vocab;
  int64_t common = 0;
  TeacherSignal there;  // the signal, on hidden's device
  check_together(shard, [&] {
    options.validate();
    check_head(head, targets, vocab_total(shard, weight));
    vocab.emplace(shard, head.vocab());
    common = common_ids(options, vocab->total());
    check_signal(signal, {head.rows(), common, vocab->own_below(common), hidden.device()});
    there = moved_to(hidden.device(), signal);
    if (const auto* top_k = std::get_if<TeacherTopK>(&there)) check_top_k_rows(*top_k, common);
  });

  // The teacher's rows may all be looked at only after the last chunk: until then every rank has to
  // take part in each chunk's reductions.
  const auto teacher = make_teacher(there, *vocab, common, options);
  DistillChunks chunks(*vocab, moved_to(hidden.device(), targets), *teacher, options);
  const int64_t rows_at_once = aten_chunk_rows(
      options.chunk_tokens, vocab->rows_per_rank() + teacher->floats_per_row(), hidden.device());
  const at::Tensor loss_sum = run_linear_head(head, rows_at_once, chunks);
  teacher->check_rows();

  DistillResult result = chunks.result();
  result.count = head.rows();
  result.loss_sum = loss_sum;
  return result;
}

}  // namespace retort::losses::detail
