// The objective with ids that the student names, against the formula in double precision.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "parallel/world.h"
#include "recipes/distill/objective.h"
#include "rpc/agent.h"
#include "tests/recipes/objectives/fake_frozen_role.h"

namespace retort::recipes {
namespace {

using roles::Support;
using test::FakeFrozenRole, test::nano_llama;

constexpr int64_t kNamed = 6;

data::Sample named_sample(int32_t first, int32_t length, const std::string& domain) {
  data::Sample sample;
  for (int32_t i = 0; i < length; ++i) {
    sample.input_ids.push_back((first + 7 * i) % 67);
    sample.is_target.push_back(i >= 2);
  }
  sample.fields = {{"domain", domain}};
  return sample;
}

data::MicroBatch named_batch() {
  return data::make_micro_batch({named_sample(1, 6, "math"), named_sample(5, 9, "code")});
}

double loss_with(Support support, bool routed) {
  const models::Decoder student = nano_llama(1);
  std::vector<TeacherRoute> routes(routed ? 2 : 1);
  for (size_t i = 0; i < routes.size(); ++i) {
    routes[i].client = std::make_unique<FakeFrozenRole>(
        nano_llama(2),
        roles::PayloadSpec{.kind = roles::PayloadKind::kTopK, .top_k = kNamed, .support = support});
    if (routed) routes[i].when = {{"domain", i == 0 ? "math" : "code"}};
  }
  rpc::Agent agent({.name = "student/0", .secret = "secret"});
  DistillObjective objective(
      [](int64_t) {
        data::BatchStream::Step step;
        step.micro_batches.push_back(named_batch());
        return step;
      },
      agent, std::move(routes),
      {.divergence = {.type = losses::DivergenceType::kReverseKl},
       .named_ids = support == Support::kTeacher ? 0 : kNamed});
  StepSums sums;
  sums.values.resize(objective.num_values(), 0.0);
  objective.next_step(1);
  const double loss =
      objective.loss_sum(student.head(), student.hidden(objective.tokens(0)), 0, sums)
          .item<double>();
  agent.close();
  agent.join();
  return loss;
}

// Reverse KL over the ids and the rest.
double formula_with(Support support) {
  const c10::NoGradGuard no_grad;
  const data::MicroBatch batch = named_batch();
  const auto log_probs = [&](uint64_t seed) {
    const models::Decoder decoder = nano_llama(seed);
    const at::Tensor rows = decoder.hidden(batch.tokens).index_select(0, batch.predict_positions);
    return at::log_softmax(
        at::matmul(rows.to(at::kDouble), decoder.head_weight().detach().to(at::kDouble).t()), 1);
  };
  const at::Tensor p = log_probs(1), q = log_probs(2);
  at::Tensor mask = at::zeros(p.sizes(), at::kBool);
  if (support != Support::kTeacher) mask.scatter_(1, std::get<1>(at::topk(p, kNamed, 1)), true);
  if (support != Support::kStudent) mask.scatter_(1, std::get<1>(at::topk(q, kNamed, 1)), true);
  const at::Tensor inside = mask.to(at::kDouble), outside = 1 - inside;
  const at::Tensor p_rest = (p.exp() * outside).sum(1), q_rest = (q.exp() * outside).sum(1);
  return ((p.exp() * (p - q) * inside).sum() + (p_rest * (p_rest / q_rest).log()).sum())
      .item<double>();
}

TEST(SupportObjective, IsTheFormulaOfItsIds) {
  for (const Support support : {Support::kTeacher, Support::kStudent, Support::kUnion}) {
    const double expected = formula_with(support);
    for (const bool routed : {false, true})
      EXPECT_NEAR(loss_with(support, routed), expected, 1e-5 * std::abs(expected))
          << enum_name(support) << (routed ? ", a teacher for each sample" : "");
  }
  EXPECT_GT(std::abs(formula_with(Support::kStudent) - formula_with(Support::kTeacher)), 1e-4);
  EXPECT_GT(std::abs(formula_with(Support::kUnion) - formula_with(Support::kStudent)), 1e-4);
}

}  // namespace
}  // namespace retort::recipes
