#include "recipes/distill/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/printable.h"
#include "models/ops/softcap.h"
#include "recipes/distill/two_tokenizers.h"
#include "recipes/losses/linear_uld.h"

namespace retort::recipes {
namespace {

using Row = std::vector<double>;

// So many groups are compared: a row of a large vocabulary in float64 takes its time.
constexpr size_t kGroups = 8;

// The probabilities of one row over the first `ids` ids (0: all).
Row probabilities(const CheckedRows& side, int64_t row, double temperature, int64_t ids) {
  const at::Tensor products =
      at::matmul(side.hidden.select(0, row).to(at::kDouble), side.weight.to(at::kDouble).t());
  at::Tensor logits = models::softcapped(products, side.softcap);
  if (ids > 0) logits = logits.narrow(0, 0, ids);
  const at::Tensor p = (logits / temperature).softmax(0).contiguous();
  return {p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel()};
}

// The distribution of a group's last row, times the probabilities of its earlier tokens.
Row merged(const CheckedRows& side, const at::Tensor& targets, int64_t begin, int64_t end,
           const losses::UldOptions& options, int64_t ids) {
  double earlier = 1;
  for (int64_t row = begin; row + 1 < end && !options.normalize; ++row) {
    const Row p = probabilities(side, row, options.temperature, ids);
    earlier *= std::max(p.at(static_cast<size_t>(targets[row].item<int64_t>())), 1e-8);
  }
  Row last = probabilities(side, end - 1, options.temperature, ids);
  for (double& p : last)
    p *= earlier;
  return last;
}

double sorted_distance(Row x, Row y) {
  x.resize(std::max(x.size(), y.size()), 0.0);
  y.resize(x.size(), 0.0);
  std::sort(x.begin(), x.end(), std::greater<>());
  std::sort(y.begin(), y.end(), std::greater<>());
  double sum = 0;
  for (size_t k = 0; k < x.size(); ++k)
    sum += std::abs(x[k] - y[k]);
  return sum;
}

// What the probability y of the teacher and x of the student add to GOLD's first part.
double jsd_term(double x, double y, double beta) {
  x = std::max(x, 1e-8);
  y = std::max(y, 1e-8);
  if (beta == 0) return y * std::log(y / x);
  if (beta == 1) return x * std::log(x / y);
  const double m = beta * y + (1 - beta) * x;
  return beta * y * std::log(y / m) + (1 - beta) * x * std::log(x / m);
}

double gold_distance(Row x, Row y, const losses::MatchedIds& matched) {
  double together = 0;
  const at::Tensor student = matched.student.contiguous(), teacher = matched.teacher.contiguous();
  for (int64_t i = 0; i < student.numel(); ++i) {
    double& mine = x.at(static_cast<size_t>(student.const_data_ptr<int64_t>()[i]));
    double& theirs = y.at(static_cast<size_t>(teacher.const_data_ptr<int64_t>()[i]));
    together += jsd_term(mine, theirs, matched.beta);
    // What is matched takes no part in the sort; a negative number stays behind all others, and
    // both are cut off.
    mine = theirs = -1;
  }
  std::erase(x, -1.0);
  std::erase(y, -1.0);
  const double alone = x.empty() || y.empty() ? 0 : sorted_distance(std::move(x), std::move(y));
  return matched.matched_weight * together + matched.unmatched_weight * alone;
}

double distance(const Row& x, const Row& y, const losses::UldOptions& options) {
  return options.matched ? gold_distance(x, y, *options.matched) : sorted_distance(x, y);
}

// The groups whose rows are all there, as only the first rows are computed.
std::vector<losses::TokenGroup> first_groups(const AlignedBatch& aligned, int64_t student_rows,
                                             int64_t teacher_rows) {
  std::vector<losses::TokenGroup> groups;
  for (losses::TokenGroup group : aligned.groups) {
    if (group.student_end > student_rows || group.teacher_end > teacher_rows) break;
    group.weight = 1;
    groups.push_back(group);
    if (groups.size() == kGroups) break;
  }
  return groups;
}

// "[dis|till] = [distill]" of the first groups.
std::string first_words(const AlignedBatch& aligned, const data::MicroBatch& batch,
                        const TwoTokenizers& both) {
  const auto words = [](const data::MicroBatch& side, const models::TokenBytes& bytes,
                        int64_t begin, int64_t end) {
    std::string text;
    for (int64_t row = begin; row < end; ++row) {
      const auto id = static_cast<int32_t>(side.targets[row].item<int64_t>());
      text += (text.empty() ? "[" : "|") + printable(bytes.of(id));
    }
    return text + "]";
  };
  std::string text;
  for (size_t g = 0; g < std::min(kGroups, aligned.groups.size()); ++g) {
    const losses::TokenGroup& group = aligned.groups[g];
    text += (g > 0 ? " " : "") +
            words(batch, both.student_bytes, group.student_begin, group.student_end) + "=" +
            words(aligned.teacher, both.teacher_bytes, group.teacher_begin, group.teacher_end);
  }
  return text;
}

void say_groups(SelfCheck& check, const AlignedBatch& aligned, const data::MicroBatch& batch,
                const TwoTokenizers& both) {
  int64_t one_to_one = 0, covered = static_cast<int64_t>(aligned.ends.size());
  for (const losses::TokenGroup& group : aligned.groups) {
    const int64_t mine = group.student_end - group.student_begin;
    covered += mine;
    one_to_one += mine == 1 && group.teacher_end - group.teacher_begin == 1 ? 1 : 0;
  }
  check.check("same bytes", !aligned.groups.empty(),
              std::to_string(aligned.groups.size()) + " groups, " + std::to_string(one_to_one) +
                  " of one token on each side, and " + std::to_string(aligned.ends.size()) +
                  " ends of turns; they cover " + std::to_string(covered) + " of the student's " +
                  std::to_string(batch.num_targets()) +
                  " target tokens of the first pack, the "
                  "teacher has " +
                  std::to_string(aligned.teacher.num_targets()) + ": " +
                  first_words(aligned, batch, both));
}

}  // namespace

void check_other_tokenizer(SelfCheck& check, const Recipe& recipe, const data::MicroBatch& batch,
                           const CheckedRows& student, const models::LoadedModel& teacher) {
  const auto both = load_two_tokenizers(recipe);
  const AlignedBatch aligned = align(batch, *both);
  say_groups(check, aligned, batch, *both);
  if (recipe.distill->use_policy_gradient) return;

  const CheckedRows rows = rows_of(teacher.decoder, aligned.teacher);
  const auto groups = first_groups(aligned, student.hidden.size(0), rows.hidden.size(0));
  losses::UldOptions options = uld_options(*recipe.distill, *both);
  options.teacher_ids = std::min(both->teacher_bytes.size(), teacher.decoder.config().vocab_size);
  const at::Tensor targets = batch.targets.narrow(0, 0, student.hidden.size(0));
  const at::Tensor teacher_targets = aligned.teacher.targets.narrow(0, 0, rows.hidden.size(0));
  const auto result = losses::unread_uld(student.hidden, student.weight, {}, targets,
                                         losses::TeacherHidden{rows.hidden, rows.weight, {}},
                                         teacher_targets, groups, options, {}, student.softcap);
  const double value = result.loss_sum.item<double>();

  double expected = 0;
  for (const losses::TokenGroup& group : groups)
    expected += distance(merged(student, targets, group.student_begin, group.student_end, options,
                                /*ids=*/0),
                         merged(rows, teacher_targets, group.teacher_begin, group.teacher_end,
                                options, options.teacher_ids),
                         options);
  // Equal models differ by rounding alone, which is of the size of a group's distance at most.
  const double scale = std::max(std::abs(expected), 1e-2 * static_cast<double>(groups.size()));
  const double error = std::abs(value - expected) / std::max(scale, 1e-6);
  check.check("value against fp64", error < 1e-4,
              scientific(value) + " against " + scientific(expected) + " for " +
                  std::to_string(groups.size()) + " groups, relative error " + scientific(error));
}

}  // namespace retort::recipes
