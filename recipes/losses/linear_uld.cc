#include "recipes/losses/linear_uld.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "recipes/losses/detail/aten_teacher.h"
#include "recipes/losses/detail/group_rows.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/option_check.h"
#include "recipes/losses/detail/row_loss.h"
#include "recipes/losses/detail/teacher_checks.h"
#include "recipes/losses/detail/uld_chunks.h"
#include "recipes/losses/detail/uld_distance.h"
#include "recipes/losses/detail/uld_teacher.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/sequence_sums.h"

namespace retort::losses {
namespace {

// As in TRL an earlier token counts as at least this likely.
constexpr double kLeastEarlier = 1e-8;
// A top-k payload does not say how many ids its teacher has.
constexpr int64_t kUnknownIds = int64_t{1} << 30;

using detail::check_option;

void check_matched(const MatchedIds& matched) {
  const auto is_vector = [](const at::Tensor& ids) {
    return ids.defined() && ids.is_cpu() && ids.dim() == 1 && ids.scalar_type() == at::kLong;
  };
  if (!is_vector(matched.student) || !is_vector(matched.teacher) ||
      matched.student.size(0) != matched.teacher.size(0))
    throw Error(ErrorCode::kInvalidArgument,
                "matched ids must be two vectors of int64 of one length, on the host");
  const auto check_weight = [](const char* field, double weight) {
    check_option(weight >= 0 && std::isfinite(weight), field, "must be finite and not negative",
                 weight);
  };
  check_weight("matched_weight", matched.matched_weight);
  check_weight("unmatched_weight", matched.unmatched_weight);
  check_option(matched.beta >= 0 && matched.beta <= 1, "beta", "must be in [0, 1]", matched.beta);
}

// What is known of the arguments once the ranks have voted on them.
struct UldArguments {
  std::optional<detail::VocabGroup> student, teacher;  // the vocabularies; of top-k one of a rank
  detail::GroupRows host_rows;                         // on the host
  detail::GroupRows rows;                              // on the device of hidden
  detail::UldTeacherInputs inputs;                     // there, too
};

int64_t signal_rows(const TeacherSignal& signal) {
  const auto rows = [](const at::Tensor& all) {
    return all.defined() && all.dim() > 0 ? all.size(0) : -1;
  };
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal)) return rows(top_k->ids);
  if (const auto* full = std::get_if<TeacherFull>(&signal)) return rows(full->logps);
  return rows(std::get<TeacherHidden>(signal).hidden);
}

// The teacher's ids that this rank holds a part of.
int64_t own_teacher_ids(const TeacherSignal& signal) {
  if (const auto* full = std::get_if<TeacherFull>(&signal))
    return full->logps.defined() && full->logps.dim() == 2 ? full->logps.size(1) : 0;
  const at::Tensor& weight = std::get<TeacherHidden>(signal).weight;
  return weight.defined() && weight.dim() == 2 ? weight.size(0) : 0;
}

void check_teacher(const TeacherSignal& signal, const at::Tensor& targets,
                   const UldOptions& options, const at::Device& device) {
  if (std::holds_alternative<TeacherSampled>(signal))
    throw Error(ErrorCode::kInvalidArgument,
                "ULD and GOLD sort the teacher's probabilities, and draws have none: use the "
                "payload hidden, full or top_k instead of sampled");
  const bool top_k = std::holds_alternative<TeacherTopK>(signal);
  if (top_k && options.matched)
    throw Error(ErrorCode::kInvalidArgument,
                "GOLD compares matched ids one by one, which needs all of the teacher's "
                "probabilities: use the payload hidden or full instead of top_k");
  if (!targets.defined() || targets.dim() != 1 || targets.scalar_type() != at::kLong ||
      targets.size(0) != signal_rows(signal) || !detail::may_move_to(device, targets))
    throw Error(ErrorCode::kInvalidArgument,
                "teacher_targets must be [Rt] int64, one for each row of the teacher's signal, on "
                "the device of hidden or on the host");
  const int64_t ids = top_k ? (options.teacher_ids > 0 ? options.teacher_ids : kUnknownIds)
                            : own_teacher_ids(signal);
  detail::check_signal(signal, {targets.size(0), ids, ids, device});
}

// kMismatch unless the ranks' parts of the teacher's vocabulary are laid out as VocabShard says.
// Every rank looks at the same gathered numbers, so all throw or none. One all-gather of 8 bytes
// for a split vocabulary.
parallel::VocabShard teacher_shard(const parallel::VocabShard& vocab,
                                   const detail::VocabGroup& student, int64_t own) {
  if (vocab.whole()) return {};
  const at::Tensor rows = student.gather(own);
  const int64_t* count = rows.const_data_ptr<int64_t>();
  const int64_t ranks = rows.numel(), total = rows.sum().item<int64_t>();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t expected =
        parallel::vocab_end(total, ranks, rank) - parallel::vocab_begin(total, ranks, rank);
    if (count[rank] != expected)
      throw Error(ErrorCode::kMismatch,
                  "the ranks' parts of the teacher's vocabulary are not those of its own ids in "
                  "rank order")
          .with("rank", rank)
          .with("teacher_rows", count[rank])
          .with("expected", expected)
          .with("teacher_vocab", total);
  }
  return {vocab.group, parallel::vocab_begin(total, ranks, vocab.group->rank()), total};
}

// The teacher's ids that take part; its tokens must be among them.
int64_t teacher_ids(const UldOptions& options, int64_t vocab, const at::Tensor& targets) {
  if (options.teacher_ids > vocab)
    throw Error(ErrorCode::kInvalidArgument, "teacher_ids exceeds the teacher's vocabulary")
        .with("teacher_ids", options.teacher_ids)
        .with("teacher_vocab", vocab);
  const int64_t ids = options.teacher_ids > 0 ? options.teacher_ids : vocab;
  const at::Tensor flat = targets.to(at::kCPU).contiguous();
  const int64_t* id = flat.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < flat.size(0); ++row)
    if (id[row] < 0 || id[row] >= ids)
      throw Error(ErrorCode::kInvalidArgument, "a teacher's target is no id of its vocabulary")
          .with("row", row)
          .with("target", id[row])
          .with("teacher_vocab", ids);
  return ids;
}

UldArguments checked(const detail::LinearHead& head, const at::Tensor& targets,
                     const TeacherSignal& signal, const at::Tensor& teacher_targets,
                     const std::vector<TokenGroup>& groups, const UldOptions& options,
                     const parallel::VocabShard& vocab) {
  UldArguments result;
  const at::Device device = head.hidden.defined() ? head.hidden.device() : at::Device(at::kCPU);
  detail::check_together(vocab, [&] {
    options.validate();
    detail::check_head(head, targets, detail::vocab_total(vocab, head.weight));
    result.student.emplace(vocab, head.vocab());
    check_teacher(signal, teacher_targets, options, device);
    result.host_rows = detail::group_rows(groups, head.rows(), teacher_targets.size(0));
    result.rows = detail::moved_to(device, result.host_rows);
  });

  // How many ids the teacher has is known only once the ranks have put their parts together.
  const bool top_k = std::holds_alternative<TeacherTopK>(signal);
  const int64_t own = top_k ? kUnknownIds : own_teacher_ids(signal);
  const parallel::VocabShard shard =
      top_k ? parallel::VocabShard{} : teacher_shard(vocab, *result.student, own);
  result.teacher.emplace(shard, own);
  detail::check_together(vocab, [&] {
    const int64_t ids = teacher_ids(options, result.teacher->total(), teacher_targets);
    detail::check_matched_ids(options, result.student->total(), ids);
    result.inputs = {.signal = detail::moved_to(device, signal),
                     .targets = detail::moved_to(device, teacher_targets),
                     .rows = result.rows.teacher,
                     .ids = ids,
                     .temperature = options.temperature};
  });
  return result;
}

// What the student's rows that are no group's last one add.
struct OtherRows {
  at::Tensor product;      // [G] float32 with autograd: m of each group
  at::Tensor ce, entropy;  // float64 scalars, sums; ce with autograd where it counts
};

at::Tensor product_of(const at::Tensor& log_probs, const at::Tensor& group, int64_t groups) {
  return sum_by_sequence(log_probs.clamp_min(std::log(kLeastEarlier)), group, groups).exp();
}

OtherRows other_rows(const detail::LinearHead& head, const at::Tensor& targets,
                     const UldArguments& given, const UldOptions& options,
                     const parallel::VocabShard& vocab) {
  // Targets that came on the host are handed on from there: those of a device would be waited for.
  const detail::SideRows& rows = given.rows.student;
  const detail::SideRows& of_targets = targets.is_cpu() ? given.host_rows.student : rows;
  const auto f64 = head.hidden.options().dtype(at::kDouble).requires_grad(false);
  const int64_t groups = rows.last.size(0), earlier = rows.earlier.size(0);
  OtherRows result{at::ones({groups}, f64.dtype(at::kFloat)), at::zeros({}, f64),
                   at::zeros({}, f64)};
  const auto log_probs = [&](const at::Tensor& places, const at::Tensor& target_places,
                             double temperature) {
    return linear_log_probs(head.hidden.index_select(0, places), head.weight, head.bias,
                            targets.index_select(0, target_places),
                            {.temperature = temperature,
                             .entropy = temperature == 1,
                             .chunk_tokens = options.chunk_tokens},
                            vocab, head.softcap);
  };

  // At temperature 1 one pass serves the groups' earlier rows and the cross-entropy. Without either
  // use it is for the numbers alone.
  const bool merges = !options.normalize && earlier > 0;
  const bool shared = merges && options.temperature == 1;
  if (earlier + rows.others.size(0) > 0) {
    const at::AutoGradMode mode(at::GradMode::is_enabled() && (shared || options.ce_weight > 0));
    const LogProbs all = log_probs(at::cat({rows.earlier, rows.others}),
                                   at::cat({of_targets.earlier, of_targets.others}), 1);
    result.ce = -all.log_probs.to(at::kDouble).sum();
    result.entropy = all.entropy.detach().to(at::kDouble).sum();
    if (shared)
      result.product = product_of(all.log_probs.narrow(0, 0, earlier), rows.group, groups);
  }
  if (merges && !shared) {
    const LogProbs before = log_probs(rows.earlier, of_targets.earlier, options.temperature);
    result.product = product_of(before.log_probs, rows.group, groups);
  }
  return result;
}

}  // namespace

void UldOptions::validate() const {
  check_option(temperature > 0 && std::isfinite(temperature), "temperature",
               "must be positive and finite", temperature);
  check_option(teacher_ids >= 0, "teacher_ids", "must be a number of ids, or 0 for all of them",
               static_cast<double>(teacher_ids));
  check_option(kd_weight >= 0 && std::isfinite(kd_weight), "kd_weight",
               "must be finite and not negative", kd_weight);
  check_option(ce_weight >= 0 && std::isfinite(ce_weight), "ce_weight",
               "must be finite and not negative", ce_weight);
  check_option(chunk_tokens >= 0, "chunk_tokens",
               "must be positive, or 0 for a size chosen from the shapes",
               static_cast<double>(chunk_tokens));
  if (matched) check_matched(*matched);
}

UldSums UldSums::of(const double* numbers) {
  detail::refuse_coded(numbers[7]);
  return {.kd_sum = numbers[0],
          .one_to_one_sum = numbers[1],
          .merged_sum = numbers[2],
          .matched_sum = numbers[3],
          .unmatched_sum = numbers[4],
          .ce_sum = numbers[5],
          .entropy_sum = numbers[6]};
}

UnreadUld unread_uld(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& targets, const TeacherSignal& signal,
                     const at::Tensor& teacher_targets, const std::vector<TokenGroup>& groups,
                     const UldOptions& options, const parallel::VocabShard& vocab, double softcap) {
  const detail::LinearHead head{hidden, weight, bias, softcap};
  const UldArguments given =
      checked(head, targets, signal, teacher_targets, groups, options, vocab);
  const detail::GroupRows& rows = given.rows;
  const detail::UldTeacherInputs& inputs = given.inputs;
  const at::Device device = hidden.device();
  const bool top_k = std::holds_alternative<TeacherTopK>(signal);

  // Whole rows are formed of both sides, also where the vocabularies are split.
  const auto teacher = detail::make_uld_teacher(inputs, *given.teacher);
  const int64_t rows_at_once = detail::aten_chunk_rows(
      options.chunk_tokens, given.student->total() + teacher->floats_per_row(), device);
  const at::Tensor ids = detail::moved_to(device, targets).contiguous();
  const OtherRows others = other_rows(head, targets, given, options, vocab);
  detail::UldGroups of_groups{ids.index_select(0, rows.student.last),
                              others.product.detach(),
                              {},
                              rows.weight,
                              rows.one_to_one};
  of_groups.teacher_product = options.normalize || rows.teacher.earlier.size(0) == 0
                                  ? at::ones_like(of_groups.student_product)
                                  : product_of(teacher->earlier_log_probs(rows_at_once),
                                               rows.teacher.group, rows.teacher.last.size(0));

  // The last rows' gradient is formed beside their distances; that of the products, which it needs,
  // is added by a term that is zero itself.
  const auto distance =
      detail::make_uld_distance(options, given.student->total(), inputs.ids, top_k, device);
  detail::UldChunks chunks(*given.student, options, of_groups, *distance, *teacher);
  at::Tensor loss = detail::run_linear_head(
      {hidden.index_select(0, rows.student.last), weight, bias, softcap}, rows_at_once, chunks);
  if (options.ce_weight > 0) loss = loss + others.ce * options.ce_weight;
  if (others.product.requires_grad())
    loss = loss + ((others.product - others.product.detach()) * chunks.product_slopes() *
                   rows.weight * options.kd_weight)
                      .sum();

  // A status in host memory is looked at now, that of a device travels with the numbers.
  const at::Tensor status = teacher->status();
  if (status.is_cpu()) detail::refuse_first(status);
  at::Tensor sums = chunks.sums().clone();
  sums.select(0, 5).add_(others.ce.detach());
  sums.select(0, 6).add_(others.entropy);
  return {loss.to(at::kFloat), at::cat({sums, detail::code_of_first(status).reshape({1})})};
}

}  // namespace retort::losses
