#include "tests/losses/uld_cases.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

namespace retort::losses {
namespace {

constexpr double kLeast = 1e-8;

at::Tensor fresh_leaf(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.detach().to(dtype, false, true).requires_grad_() : at::Tensor();
}

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor product = at::mm(hidden.to(at::kDouble), weight.to(at::kDouble).t());
  return bias.defined() ? product + bias.to(at::kDouble) : product;
}

// One side: log-probabilities [R, V] at the temperature, and the token of each row.
struct SideOfText {
  at::Tensor log_probs, targets;
};

// The K largest of a teacher's row; the others have their mass as one number.
struct Largest {
  at::Tensor probabilities, rest;
};
Largest largest_of(const at::Tensor& log_probs, int64_t k) {
  const at::Tensor sorted = std::get<0>(at::sort(log_probs, 0, true)).exp();
  return {sorted.narrow(0, 0, k), sorted.narrow(0, k, sorted.size(0) - k).sum()};
}

// p of a row's token, or with k > 0 the bound of it where it is not among the K largest.
at::Tensor token_probability(const SideOfText& side, int64_t row, int64_t k) {
  const at::Tensor all = side.log_probs[row];
  const at::Tensor p = all[side.targets[row].item<int64_t>()].exp();
  if (k == 0) return p.clamp_min(kLeast);
  const Largest largest = largest_of(all, k);
  const at::Tensor least = largest.probabilities[k - 1];
  if (p.item<double>() >= least.item<double>()) return p.clamp_min(kLeast);
  return at::minimum(least, largest.rest).clamp_min(kLeast);
}

// The product of what the rows [begin, end) but `without` give to their tokens.
at::Tensor product_of_tokens(const SideOfText& side, int64_t begin, int64_t end, int64_t without,
                             int64_t k) {
  at::Tensor product = at::ones({}, at::kDouble);
  for (int64_t row = begin; row < end; ++row)
    if (row != without) product = product * token_probability(side, row, k);
  return product;
}

at::Tensor sorted_difference(const at::Tensor& x, const at::Tensor& y) {
  const int64_t columns = std::max(x.size(0), y.size(0));
  const auto sorted = [&](const at::Tensor& p) {
    return at::constant_pad_nd(std::get<0>(at::sort(p, 0, true)), {0, columns - p.size(0)});
  };
  return (sorted(x) - sorted(y)).abs().sum();
}

at::Tensor jsd(const at::Tensor& x, const at::Tensor& y, double beta) {
  const at::Tensor p = x.clamp_min(kLeast), q = y.clamp_min(kLeast);
  if (beta == 0) return (q * (q.log() - p.log())).sum();
  if (beta == 1) return (p * (p.log() - q.log())).sum();
  const at::Tensor mixture = (1 - beta) * p + beta * q;
  return beta * (q * (q.log() - mixture.log())).sum() +
         (1 - beta) * (p * (p.log() - mixture.log())).sum();
}

at::Tensor without_ids(const at::Tensor& p, const at::Tensor& ids) {
  at::Tensor keeps = at::ones({p.size(0)}, at::kBool);
  keeps.index_fill_(0, ids, 0);
  return p.index_select(0, keeps.nonzero().squeeze(1));
}

struct Distance {
  at::Tensor total, matched, unmatched;
};

Distance distance_of(const at::Tensor& x, const at::Tensor& y, const UldOptions& options) {
  const at::Tensor zero = at::zeros({}, at::kDouble);
  if (!options.matched) return {sorted_difference(x, y), zero, zero};
  const MatchedIds& ids = *options.matched;
  const at::Tensor matched =
      jsd(x.index_select(0, ids.student), y.index_select(0, ids.teacher), ids.beta);
  const at::Tensor alone_x = without_ids(x, ids.student), alone_y = without_ids(y, ids.teacher);
  const bool both = alone_x.size(0) > 0 && alone_y.size(0) > 0;
  const at::Tensor unmatched = both ? sorted_difference(alone_x, alone_y) : zero;
  return {ids.matched_weight * matched + ids.unmatched_weight * unmatched, matched, unmatched};
}

Distance bucket_distance(const at::Tensor& x, const at::Tensor& y_log, const at::Tensor& product,
                         int64_t k) {
  const Largest teacher = largest_of(y_log, k);
  const at::Tensor sorted = std::get<0>(at::sort(x, 0, true));
  const int64_t common = std::min(k, sorted.size(0));
  const at::Tensor rest = sorted.narrow(0, common, sorted.size(0) - common).sum();
  const at::Tensor zero = at::zeros({}, at::kDouble);
  return {sorted_difference(sorted.narrow(0, 0, common), teacher.probabilities * product) +
              (rest - teacher.rest * product).abs(),
          zero, zero};
}

Distance distance_of_group(const TokenGroup& g, const SideOfText& student,
                           const SideOfText& teacher, const UldOptions& options, int64_t k,
                           MergedRow merged) {
  const bool last = merged == MergedRow::kLast;
  const int64_t row = last ? g.student_end - 1 : g.student_begin;
  const int64_t teacher_row = last ? g.teacher_end - 1 : g.teacher_begin;
  at::Tensor m = at::ones({}, at::kDouble), n = m;
  if (!options.normalize) {
    m = product_of_tokens(student, g.student_begin, g.student_end, row, 0);
    n = product_of_tokens(teacher, g.teacher_begin, g.teacher_end, teacher_row, k);
  }
  const at::Tensor x = student.log_probs[row].exp() * m;
  const at::Tensor y = teacher.log_probs[teacher_row];
  return k > 0 ? bucket_distance(x, y, n, k) : distance_of(x, y.exp() * n, options);
}

}  // namespace

UldProblem random_uld_problem(int64_t vocab, int64_t teacher_vocab, uint64_t seed) {
  ProblemSizes sizes{.rows = 16,
                     .vocab = vocab,
                     .width = 7,
                     .teacher_vocab = teacher_vocab,
                     .teacher_width = 5,
                     .bias = true};
  UldProblem problem{random_problem(sizes, seed), {}, {}};
  problem.both.teacher_hidden = problem.both.teacher_hidden.narrow(0, 0, 15);
  problem.both.common = teacher_vocab;  // what full_signal() and top_k_signal() are over
  sizes.rows = 15;
  sizes.vocab = teacher_vocab;
  problem.teacher_targets = random_problem(sizes, seed + 1).targets;
  problem.groups = {{1, 2, 0, 1, 1.0}, {2, 4, 1, 2, 0.5},   {4, 5, 3, 6, 2.0},
                    {6, 8, 6, 8, 1.0}, {8, 11, 8, 10, 3.0}, {11, 12, 10, 11, 1.5}};
  return problem;
}

MatchedIds some_matched_ids(const UldProblem& problem, int64_t count, double beta) {
  // Multiples of a number that shares no factor with the vocabulary come in no order.
  const auto ids = [&](const at::Tensor& weight, int64_t step) {
    return at::arange(count, at::kLong).mul(step).remainder(weight.size(0));
  };
  return {.student = ids(problem.both.weight, 7),
          .teacher = ids(problem.both.teacher_weight, 11),
          .matched_weight = 0.3,
          .unmatched_weight = 0.8,
          .beta = beta};
}

UldOutcome uld(const UldProblem& problem, const TeacherSignal& signal, const UldOptions& options,
               const parallel::VocabShard& vocab) {
  const at::Tensor h = fresh_leaf(problem.both.hidden, at::kFloat);
  const at::Tensor w = fresh_leaf(problem.both.weight, at::kFloat);
  const at::Tensor b = fresh_leaf(problem.both.bias, at::kFloat);
  const UnreadUld result = unread_uld(h, w, b, problem.both.targets, signal,
                                      problem.teacher_targets, problem.groups, options, vocab);
  const at::Tensor numbers = result.numbers.cpu();
  result.loss_sum.backward();
  return {UldSums::of(numbers.const_data_ptr<double>()), result.loss_sum.item<double>(), h.grad(),
          w.grad(), b.defined() ? b.grad() : at::Tensor()};
}

UldOutcome uld_by_formulas(const UldProblem& problem, const UldOptions& options, int64_t k,
                           MergedRow merged) {
  const Problem& p = problem.both;
  const at::Tensor h = fresh_leaf(p.hidden, at::kDouble), w = fresh_leaf(p.weight, at::kDouble);
  const at::Tensor b = fresh_leaf(p.bias, at::kDouble);
  const at::Tensor logits = logits_of(h, w, b);
  const SideOfText student{at::log_softmax(logits / options.temperature, -1), p.targets};
  at::Tensor of_teacher = logits_of(p.teacher_hidden, p.teacher_weight, p.teacher_bias);
  if (options.teacher_ids > 0) of_teacher = of_teacher.narrow(1, 0, options.teacher_ids);
  const SideOfText teacher{at::log_softmax(of_teacher / options.temperature, -1),
                           problem.teacher_targets};

  UldOutcome outcome;
  at::Tensor kd = at::zeros({}, at::kDouble);
  for (const TokenGroup& g : problem.groups) {
    const Distance d = distance_of_group(g, student, teacher, options, k, merged);
    kd = kd + g.weight * d.total;
    const bool alone = g.student_end - g.student_begin == 1 && g.teacher_end - g.teacher_begin == 1;
    (alone ? outcome.sums.one_to_one_sum : outcome.sums.merged_sum) += d.total.item<double>();
    outcome.sums.matched_sum += d.matched.item<double>();
    outcome.sums.unmatched_sum += d.unmatched.item<double>();
  }
  const at::Tensor log_p = at::log_softmax(logits, -1);
  const at::Tensor ce = -log_p.gather(1, p.targets.unsqueeze(1)).sum();
  outcome.sums.kd_sum = kd.item<double>();
  outcome.sums.ce_sum = ce.item<double>();
  outcome.sums.entropy_sum = -(log_p.exp() * log_p).sum().item<double>();

  const at::Tensor loss = options.kd_weight * kd + options.ce_weight * ce;
  loss.backward();
  outcome.loss = loss.item<double>();
  outcome.dh = h.grad();
  outcome.dw = w.grad();
  if (b.defined()) outcome.db = b.grad();
  return outcome;
}

std::vector<std::pair<std::string, double>> numbers_of(const UldOutcome& o) {
  return {{"loss", o.loss},
          {"kd", o.sums.kd_sum},
          {"one to one", o.sums.one_to_one_sum},
          {"merged", o.sums.merged_sum},
          {"matched", o.sums.matched_sum},
          {"unmatched", o.sums.unmatched_sum},
          {"ce", o.sums.ce_sum},
          {"entropy", o.sums.entropy_sum}};
}

}  // namespace retort::losses
