// Distillation, ULD and GOLD over a vocabulary that 2, 3 or 4 ranks share, against the same loss on
// one rank.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>

#include "base/error.h"
#include "tests/losses/distill_cases.h"
#include "tests/losses/uld_cases.h"
#include "tests/losses/vocab_ranks.h"
#include "tests/support/thrown.h"

namespace retort::losses::testing {
namespace {

// The teacher's rows as linear_distill's header lays them out.
at::Tensor own_teacher_rows(const at::Tensor& whole, const parallel::VocabShard& vocab) {
  if (!whole.defined()) return {};
  const int64_t end = parallel::vocab_end(vocab.total, vocab.group->size(), vocab.group->rank()),
                all = whole.size(0);
  const bool last = vocab.begin < vocab.total && end == vocab.total;
  const int64_t from = std::min(vocab.begin, all), to = last ? all : std::min(end, all);
  return whole.narrow(0, from, vocab.begin == vocab.total ? 0 : to - from);
}

TeacherSignal own_signal(const TeacherSignal& signal, const parallel::VocabShard& vocab) {
  if (const auto* hidden = std::get_if<TeacherHidden>(&signal))
    return TeacherHidden{hidden->hidden, own_teacher_rows(hidden->weight, vocab),
                         own_teacher_rows(hidden->bias, vocab)};
  if (const auto* full = std::get_if<TeacherFull>(&signal)) {
    const int64_t common = full->logps.size(1);
    const int64_t end = parallel::vocab_end(vocab.total, vocab.group->size(), vocab.group->rank());
    const int64_t from = std::min(vocab.begin, common);
    return TeacherFull{full->logps.narrow(1, from, std::min(end, common) - from)};
  }
  return signal;
}

Outcome distill_as(const Problem& p, const TeacherSignal& signal, const DivergenceOptions& options,
                   const parallel::VocabShard& vocab, at::ScalarType dtype = at::kFloat) {
  const at::Tensor h = leaf(p.hidden, dtype), w = leaf(p.weight, dtype), b = leaf(p.bias, dtype);
  Outcome outcome;
  outcome.result = linear_distill(h, w, b, p.targets, signal, options, vocab);
  outcome.loss = outcome.result.loss_sum.item<double>();
  outcome.result.loss_sum.backward();
  outcome.dh = h.grad();
  outcome.dw = w.grad();
  if (b.defined()) outcome.db = b.grad();
  return outcome;
}

void compare(parallel::Group& group, const Problem& p, const DistillCase& c, at::ScalarType dtype) {
  const parallel::VocabShard vocab = shard_of(group, p.weight.size(0));
  const Outcome whole = distill_as(p, c.signal, c.options, {}, dtype);
  const Outcome mine =
      distill_as(own_part(p, vocab), own_signal(c.signal, vocab), c.options, vocab, dtype);
  const auto numbers = numbers_of(mine), expected = numbers_of(whole);
  std::vector<double> values;
  for (size_t i = 0; i < numbers.size(); ++i) {
    require_near(numbers[i].second, expected[i].second, 1e-6, c.name + ": " + numbers[i].first);
    values.push_back(numbers[i].second);
  }
  const at::Tensor all = group.all_gather(at::tensor(values, at::kDouble));
  for (int r = 1; r < group.size(); ++r)
    require(at::equal(all[r], all[0]), c.name + ": the same bits on every rank");
  at::Tensor dh = mine.dh.to(at::kFloat);
  group.all_reduce(dh);
  const bool exact = dtype == at::kFloat;
  require_near(dh, whole.dh, exact ? c.tolerance : 6e-3, c.name + ": dH");
  require_near(all_rows(mine.dw, vocab), whole.dw, exact ? c.tolerance : 1e-3, c.name + ": dW");
  require_near(all_rows(mine.db, vocab), whole.db, exact ? c.tolerance : 1e-3, c.name + ": db");
}

void cases_scenario(parallel::Group& group) {
  const DistillCases all = distill_cases();
  // A third of them on two and on three ranks, not the same; a seventh on four. The steps share no
  // factor with the ten cases of a loss.
  const size_t ranks = static_cast<size_t>(group.size());
  for (size_t i = ranks - 2; i < all.cases.size(); i += ranks < 4 ? 3 : 7) {
    compare(group, all.problems[all.cases[i].problem], all.cases[i], at::kFloat);
    if (i % 4 == 0) compare(group, all.problems[all.cases[i].problem], all.cases[i], at::kBFloat16);
  }
}

void no_rows_scenario(parallel::Group& group) {
  Problem p = random_problem(
      {.rows = 0, .vocab = 9, .width = 4, .teacher_vocab = 9, .teacher_width = 3, .bias = true},
      44);
  const parallel::VocabShard vocab = shard_of(group, 9);
  const Problem own = own_part(p, vocab);
  const TeacherTopK none{at::empty({0, 2}, at::kInt), at::empty({0, 2}), at::empty({0})};
  for (const TeacherSignal& signal :
       {TeacherSignal(hidden_signal(p)), TeacherSignal(TeacherFull{at::empty({0, 9})}),
        TeacherSignal(none)}) {
    const Outcome got = distill_as(own, own_signal(signal, vocab), {}, vocab);
    require(
        got.loss == 0 && got.dh.sizes() == p.hidden.sizes() && got.dw.sizes() == own.weight.sizes(),
        "no rows: shapes");
    require(got.dw.abs().sum().item<double>() == 0 && got.db.abs().sum().item<double>() == 0,
            "no rows: zeros");
  }
}

// What one rank alone has, or finds, is thrown on all of them; the group stays usable.
void refusals_scenario(parallel::Group& group) {
  const Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3}, 46);
  const parallel::VocabShard vocab = shard_of(group, 20);
  const Problem own = own_part(p, vocab);
  const bool second = group.rank() == 1;
  const auto refused = [&](ErrorCode code, const std::string& part, const TeacherSignal& signal,
                           const DivergenceOptions& options = {}) {
    const std::optional<Error> error = test::thrown(
        [&] { linear_distill(own.hidden, own.weight, {}, own.targets, signal, options, vocab); });
    require(error && error->code() == code &&
                std::string(error->what()).find(part) != std::string::npos,
            part + ", but: " + (error ? error->what() : "accepted"));
  };

  // Hidden states: numbers, rows of another place, a teacher with more ids.
  const auto hidden = std::get<TeacherHidden>(own_signal(hidden_signal(p), vocab));
  at::Tensor weight = hidden.weight.clone();
  if (second) weight[2][1] = NAN;
  refused(ErrorCode::kCorrupt, "row=0", TeacherHidden{hidden.hidden, weight, {}},
          {.chunk_tokens = 2});
  refused(ErrorCode::kMismatch, "beside the student's",
          TeacherHidden{hidden.hidden, second ? weight.narrow(0, 0, 3) : weight, {}});
  refused(
      ErrorCode::kMismatch, "set common_vocab",
      TeacherHidden{hidden.hidden,
                    group.rank() + 1 == group.size() ? at::cat({weight, weight}) : hidden.weight,
                    {}});

  // Full log-probabilities, top-k, options.
  auto full = std::get<TeacherFull>(own_signal(full_signal(p, 1), vocab));
  refused(ErrorCode::kMismatch, "as wide as",
          TeacherFull{second ? full.logps.narrow(1, 0, 2) : full.logps});
  refused(ErrorCode::kCorrupt, "do not sum to 1", TeacherFull{full.logps + (second ? 0.1 : 0.0)});
  TeacherTopK top = top_k_signal(p, 1, 4);
  top.ids = top.ids.clone();
  if (second) top.ids[3][1] = 20;
  refused(ErrorCode::kMismatch, "row=3", top);
  refused(ErrorCode::kInvalidArgument, "temperature", top, {.temperature = second ? -1.0 : 1.0});

  distill_as(own, hidden, {}, vocab);
}

// A rank that leaves its statistics out of a reduction is found: the checks above would fail.
void missing_part_scenario(parallel::Group& group) {
  const Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3, .bias = true},
      47);
  const parallel::VocabShard vocab = shard_of(group, 20);
  Problem own = own_part(p, vocab);
  const double whole = distill_as(p, hidden_signal(p), {}, {}).loss;
  TeacherHidden hidden = std::get<TeacherHidden>(own_signal(hidden_signal(p), vocab));
  if (group.rank() == 1) hidden.bias = at::full_like(hidden.bias, -INFINITY);
  const double without = distill_as(own, hidden, {}, vocab).loss;
  require(std::abs(without - whole) > 1e-2 * std::abs(whole),
          "a missing part of the teacher changes the loss");
}

// Of ULD each rank has its part of the teacher's own vocabulary.
TeacherSignal own_uld_signal(const TeacherSignal& signal, parallel::Group& group) {
  if (const auto* hidden = std::get_if<TeacherHidden>(&signal)) {
    const parallel::VocabShard shard = shard_of(group, hidden->weight.size(0));
    return TeacherHidden{hidden->hidden, own_rows(hidden->weight, shard),
                         own_rows(hidden->bias, shard)};
  }
  if (const auto* full = std::get_if<TeacherFull>(&signal)) {
    const parallel::VocabShard shard = shard_of(group, full->logps.size(1));
    return TeacherFull{own_rows(full->logps.t(), shard).t()};
  }
  return signal;
}

void compare_uld(parallel::Group& group, const UldProblem& p, const TeacherSignal& signal,
                 const UldOptions& options, const std::string& name) {
  const parallel::VocabShard vocab = shard_of(group, p.both.weight.size(0));
  const UldOutcome whole = uld(p, signal, options);
  UldProblem own = p;
  own.both = own_part(p.both, vocab);
  const UldOutcome mine = uld(own, own_uld_signal(signal, group), options, vocab);
  const auto numbers = numbers_of(mine), expected = numbers_of(whole);
  std::vector<double> values;
  for (size_t i = 0; i < numbers.size(); ++i) {
    require_near(numbers[i].second, expected[i].second, 1e-6, name + ": " + numbers[i].first);
    values.push_back(numbers[i].second);
  }
  const at::Tensor all = group.all_gather(at::tensor(values, at::kDouble));
  for (int r = 1; r < group.size(); ++r)
    require(at::equal(all[r], all[0]), name + ": the same bits on every rank");
  at::Tensor dh = mine.dh.clone();
  group.all_reduce(dh);
  require_near(dh, whole.dh, 2e-6, name + ": dH");
  require_near(all_rows(mine.dw, vocab), whole.dw, 2e-6, name + ": dW");
  require_near(all_rows(mine.db, vocab), whole.db, 2e-6, name + ": db");
}

// Neither 31 nor 45 is a multiple of two, 31 none of three.
void uld_scenario(parallel::Group& group) {
  for (const auto& [vocab, teacher_vocab] : {std::pair<int64_t, int64_t>{31, 45}, {45, 31}}) {
    const UldProblem p = random_uld_problem(vocab, teacher_vocab, 48);
    const MatchedIds matched = some_matched_ids(p, 20, 0.5);
    compare_uld(group, p, hidden_signal(p.both), {.ce_weight = 0.3, .chunk_tokens = 4}, "uld");
    compare_uld(group, p, full_signal(p.both, 2), {.temperature = 2, .matched = matched}, "gold");
    compare_uld(group, p, top_k_signal(p.both, 1, 6), {.chunk_tokens = 4}, "uld of top-k");
    UldProblem named = p;
    named.teacher_targets = p.teacher_targets.clamp_max(teacher_vocab - 4);
    // The first few matched ids are none of those that are left out.
    compare_uld(group, named, hidden_signal(p.both),
                {.temperature = 2,
                 .matched = some_matched_ids(p, 4, 0.5),
                 .teacher_ids = teacher_vocab - 3,
                 .ce_weight = 0.1},
                "gold of fewer ids");
    if (teacher_vocab == 31) continue;

    // The rows of another rank, and what one rank alone has wrong, are thrown on all.
    const parallel::VocabShard shard = shard_of(group, vocab);
    UldProblem own = p;
    own.both = own_part(p.both, shard);
    const auto refused = [&](ErrorCode code, const TeacherSignal& signal, double temperature) {
      const std::optional<Error> error =
          test::thrown([&] { uld(own, signal, {.temperature = temperature}, shard); });
      require(error && error->code() == code, "a refusal of uld");
    };
    auto hidden = std::get<TeacherHidden>(own_uld_signal(hidden_signal(p.both), group));
    refused(ErrorCode::kInvalidArgument, hidden, group.rank() == 1 ? -1.0 : 1.0);
    if (group.rank() == 1) {
      hidden.weight = hidden.weight.narrow(0, 0, 3);
      hidden.bias = hidden.bias.narrow(0, 0, 3);
    }
    refused(ErrorCode::kMismatch, hidden, 1.0);
  }
}

// Ranks do all that their number is good for one after the other, as to start them takes longer.
void two_ranks_of_distill(parallel::Group& group) {
  cases_scenario(group);
  uld_scenario(group);
  missing_part_scenario(group);
}

void three_ranks_of_distill(parallel::Group& group) {
  cases_scenario(group);
  uld_scenario(group);
  no_rows_scenario(group);
  refusals_scenario(group);
}

TEST(VocabDistill, TwoRanksAlsoWithAMissingPart) { expect_ranks_succeed("two_ranks", 2); }
TEST(VocabDistill, ThreeRanksAlsoWithoutRowsAndRefusals) { expect_ranks_succeed("three_ranks", 3); }
TEST(VocabDistill, FourRanksOneOfThemEmpty) { expect_ranks_succeed("cases", 4); }

}  // namespace

std::map<std::string, Scenario> scenarios() {
  return {{"cases", cases_scenario},
          {"two_ranks", two_ranks_of_distill},
          {"three_ranks", three_ranks_of_distill}};
}

}  // namespace retort::losses::testing
