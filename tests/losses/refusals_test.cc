// What the losses refuse, with the code and the row that the message names.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "base/error.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "tests/losses/fixtures.h"
#include "tests/support/thrown.h"

namespace retort::losses {
namespace {

using test::expect_error;

Problem small() {
  return random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3}, 31);
}

DistillResult call(const Problem& p, const TeacherSignal& signal,
                   const DivergenceOptions& options = {}) {
  return linear_distill(p.hidden, p.weight, p.bias, p.targets, signal, options);
}

at::Tensor with_value(const at::Tensor& tensor, int64_t row, int64_t column, double value) {
  at::Tensor copy = tensor.clone();
  copy.select(0, row).select(0, column).fill_(value);
  return copy;
}

TEST(Refusals, OptionsOutOfRange) {
  const auto refuse = [](const char* field, const DivergenceOptions& o) {
    expect_error(ErrorCode::kInvalidArgument, field, [&] { o.validate(); });
  };
  refuse("beta", {.beta = -0.1});
  refuse("beta", {.beta = 1.5});
  refuse("beta", {.beta = NAN});
  refuse("skew_lambda", {.skew_lambda = 1.0});
  refuse("skew_lambda", {.skew_lambda = -0.1});
  refuse("temperature", {.temperature = 0});
  refuse("temperature", {.temperature = INFINITY});
  refuse("temperature", {.temperature = NAN});
  refuse("kd_ratio", {.kd_ratio = 1.1});
  refuse("common_vocab", {.common_vocab = -1});
  refuse("chunk_tokens", {.chunk_tokens = -1});
  DivergenceOptions{}.validate();
  DivergenceOptions{.beta = 0, .skew_lambda = 0, .kd_ratio = 0}.validate();
}

TEST(Refusals, TruncatedTailsWithOtherDivergences) {
  for (const auto& [name, type] : EnumNames<DivergenceType>::values) {
    for (Tail tail : {Tail::kRenormalize, Tail::kDrop}) {
      const DivergenceOptions options{.type = type, .tail = tail};
      if (type == DivergenceType::kForwardKl)
        options.validate();
      else
        expect_error(ErrorCode::kInvalidArgument, "forward_kl only", [&] { options.validate(); });
    }
  }
  const Problem p = small();
  expect_error(ErrorCode::kInvalidArgument, "forward_kl only", [&] {
    call(p, top_k_signal(p, 1, 4), {.type = DivergenceType::kTvd, .tail = Tail::kDrop});
  });
}

TEST(Refusals, ShapesOfTheHead) {
  const Problem p = small();
  const TeacherSignal signal = hidden_signal(p);
  // `change` makes one field of a good problem wrong.
  const auto refuse = [&](const char* part, const std::function<void(Problem&)>& change) {
    Problem bad = p;
    change(bad);
    expect_error(ErrorCode::kInvalidArgument, part, [&] { call(bad, signal); });
  };
  refuse("hidden must be", [&](Problem& bad) { bad.hidden = p.hidden.unsqueeze(0); });
  refuse("hidden must be", [&](Problem& bad) { bad.hidden = p.hidden.to(at::kInt); });
  refuse("weight must be", [&](Problem& bad) { bad.weight = p.weight.narrow(1, 0, 3); });
  refuse("bias must be", [&](Problem& bad) { bad.bias = at::zeros({19}); });
  refuse("targets must be", [&](Problem& bad) { bad.targets = p.targets.to(at::kInt); });
  refuse("targets must be", [&](Problem& bad) { bad.targets = p.targets.narrow(0, 0, 5); });
}

TEST(Refusals, TargetsThatAreNoIds) {
  const Problem p = small();
  Problem bad = p;
  bad.targets = p.targets.clone();
  const auto refuse = [&](const char* part) {
    expect_error(ErrorCode::kInvalidArgument, part, [&] { call(bad, hidden_signal(p)); });
  };
  bad.targets[4] = -100;
  refuse("row=4");
  bad.targets[4] = 20;
  refuse("target=20");
  expect_error(ErrorCode::kInvalidArgument, "row=4",
               [&] { linear_cross_entropy(p.hidden, p.weight, {}, bad.targets); });
}

TEST(Refusals, VocabulariesAndRowsThatDiffer) {
  const Problem p = small();
  const auto mismatch = [&](const char* part, const TeacherSignal& signal,
                            const DivergenceOptions& options = {}) {
    expect_error(ErrorCode::kMismatch, part, [&] { call(p, signal, options); });
  };
  const TeacherHidden hidden = hidden_signal(p);
  mismatch("set common_vocab", TeacherHidden{hidden.hidden, hidden.weight.narrow(0, 0, 19), {}});
  mismatch("set common_vocab",
           TeacherHidden{hidden.hidden, at::cat({hidden.weight, hidden.weight}), {}});
  mismatch("set common_vocab", TeacherHidden{hidden.hidden, hidden.weight.narrow(0, 0, 10), {}},
           {.common_vocab = 11});
  call(p, TeacherHidden{hidden.hidden, hidden.weight.narrow(0, 0, 10), {}}, {.common_vocab = 10});
  mismatch("exceeds", hidden, {.common_vocab = 21});
  mismatch("row counts", TeacherHidden{hidden.hidden.narrow(0, 0, 5), hidden.weight, {}});
  mismatch("[Vt, Ht]", TeacherHidden{hidden.hidden, p.weight, {}});
  mismatch("[Vt]", TeacherHidden{hidden.hidden, hidden.weight, at::zeros({3})});

  const TeacherFull full = full_signal(p, 1);
  mismatch("common vocabulary", full, {.common_vocab = 19});
  mismatch("row counts", TeacherFull{full.logps.narrow(0, 1, 5)});

  const TeacherTopK top = top_k_signal(p, 1, 4);
  mismatch("row counts", TeacherTopK{top.ids.narrow(0, 0, 5), top.logps, top.log_tail});
  mismatch("shape of the ids", TeacherTopK{top.ids, top.logps.narrow(1, 0, 3), top.log_tail});
  mismatch("log_tail", TeacherTopK{top.ids, top.logps, top.log_tail.narrow(0, 0, 5)});
  mismatch("more top-k ids", top, {.common_vocab = 3});
  expect_error(ErrorCode::kInvalidArgument, "int32", [&] {
    call(p, TeacherTopK{top.ids.to(at::kLong), top.logps, top.log_tail});
  });
}

TEST(Refusals, DamagedPayloadsNameTheRow) {
  const Problem p = small();
  const auto refuse = [&](ErrorCode code, const char* part, const TeacherSignal& signal) {
    for (int64_t chunk : {0, 2})
      expect_error(code, part, [&] { call(p, signal, {.chunk_tokens = chunk}); });
  };
  const TeacherTopK top = top_k_signal(p, 1, 4);
  refuse(ErrorCode::kMismatch, "row=3",
         TeacherTopK{with_value(top.ids, 3, 1, 20), top.logps, top.log_tail});
  refuse(ErrorCode::kMismatch, "row=5",
         TeacherTopK{with_value(top.ids, 5, 0, -1), top.logps, top.log_tail});
  const int64_t first = top.ids.select(0, 2).select(0, 0).item<int64_t>();
  refuse(
      ErrorCode::kCorrupt, "twice",
      TeacherTopK{with_value(top.ids, 2, 3, static_cast<double>(first)), top.logps, top.log_tail});
  refuse(ErrorCode::kCorrupt, "row=1",
         TeacherTopK{top.ids, with_value(top.logps, 1, 2, NAN), top.log_tail});
  refuse(ErrorCode::kCorrupt, "row=0",
         TeacherTopK{top.ids, with_value(top.logps, 0, 2, INFINITY), top.log_tail});
  refuse(ErrorCode::kCorrupt, "do not sum to 1",
         TeacherTopK{top.ids, top.logps + 0.01, top.log_tail + 0.01});
  refuse(ErrorCode::kCorrupt, "do not sum to 1", TeacherTopK{top.ids, top.logps, top.log_tail + 5});
  at::Tensor tail = top.log_tail.clone();
  tail[4] = NAN;
  refuse(ErrorCode::kCorrupt, "row=4", TeacherTopK{top.ids, top.logps, tail});

  const TeacherFull full = full_signal(p, 1);
  refuse(ErrorCode::kCorrupt, "row=2", TeacherFull{with_value(full.logps, 2, 19, NAN)});
  // e.g. another temperature
  refuse(ErrorCode::kCorrupt, "do not sum to 1", TeacherFull{full.logps * 2});
  const TeacherHidden hidden = hidden_signal(p);
  refuse(ErrorCode::kCorrupt, "row=4",
         TeacherHidden{with_value(hidden.hidden, 4, 0, NAN), hidden.weight, {}});
  refuse(ErrorCode::kCorrupt,
         "row=", TeacherHidden{hidden.hidden, with_value(hidden.weight, 7, 0, INFINITY), {}});
}

TEST(Refusals, AStudentThatDivergedIsNotHidden) {
  Problem p = small();
  p.hidden = with_value(p.hidden, 2, 1, NAN);
  EXPECT_TRUE(std::isnan(call(p, hidden_signal(p)).loss_sum.item<double>()));
  EXPECT_TRUE(std::isnan(call(p, top_k_signal(p, 1, 4)).loss_sum.item<double>()));
  EXPECT_TRUE(
      std::isnan(linear_cross_entropy(p.hidden, p.weight, {}, p.targets).loss_sum.item<double>()));
}

}  // namespace
}  // namespace retort::losses
