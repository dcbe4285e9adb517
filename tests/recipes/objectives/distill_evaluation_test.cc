// eval_kd_loss of DistillObjective, in one process, against the divergence in float64.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/world.h"
#include "recipes/distill/objective.h"
#include "recipes/run/rank/request_id.h"
#include "rpc/agent.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/support/folder_fixture.h"

namespace retort::recipes {
namespace {

using test::FakeFrozenRole, test::nano_llama;

data::Sample evaluated_sample(int32_t first, int32_t length, const std::string& domain) {
  data::Sample sample;
  for (int32_t i = 0; i < length; ++i) {
    sample.input_ids.push_back((first + 7 * i) % 67);
    sample.is_target.push_back(i >= 2);
  }
  sample.fields = {{"domain", domain}};
  sample.origin = domain + ".jsonl:" + std::to_string(first);
  return sample;
}

std::vector<data::MicroBatch> evaluated_batches(const std::vector<std::string>& domains) {
  std::vector<data::MicroBatch> batches;
  batches.push_back(data::make_micro_batch(
      {evaluated_sample(1, 6, domains.at(0)), evaluated_sample(5, 9, domains.at(1))}));
  batches.push_back(data::make_micro_batch({}));  // of a rank that has fewer
  batches.push_back(data::make_micro_batch({evaluated_sample(11, 7, domains.at(2))}));
  return batches;
}

// The mean KL(teacher || student) over the targets of the samples of this domain; "": of all.
double expected_kl(const models::Decoder& student, const models::Decoder& teacher,
                   const std::string& domain) {
  const auto log_probs = [](const models::Decoder& model, const data::MicroBatch& batch) {
    const at::Tensor rows = model.hidden(batch.tokens).index_select(0, batch.predict_positions);
    return at::log_softmax(
        at::matmul(rows.to(at::kDouble), model.head_weight().to(at::kDouble).t()), 1);
  };
  double sum = 0, count = 0;
  for (const data::MicroBatch& whole : evaluated_batches({"math", "code", "math"}))
    for (const data::Sample& sample : whole.samples) {
      if (!domain.empty() && sample.fields.front().second != domain) continue;
      const data::MicroBatch batch = data::make_micro_batch({sample});
      const at::Tensor q = log_probs(teacher, batch);
      sum += (q.exp() * (q - log_probs(student, batch))).sum().item<double>();
      count += static_cast<double>(batch.num_targets());
    }
  return sum / count;
}

class DistillEvaluation : public test::FolderTest {
 protected:
  // eval_kd_loss with a teacher for the samples of `domain` ("": for all), after some steps.
  std::vector<std::optional<double>> evaluate(const std::string& domain,
                                              const std::vector<std::string>& domains) {
    TeacherRoute route;
    auto role = std::make_unique<FakeFrozenRole>(
        nano_llama(2), roles::PayloadSpec{.kind = roles::PayloadKind::kFull});
    const FakeFrozenRole& asked = *role;
    route.client = std::move(role);
    if (!domain.empty()) route.when = {{"domain", domain}};
    std::vector<TeacherRoute> routes;
    routes.push_back(std::move(route));

    rpc::Agent agent({.name = "student/0", .secret = "secret"});
    DistillObjective objective({}, agent, std::move(routes),
                               {.divergence = {.type = losses::DivergenceType::kForwardKl}});
    std::vector<std::optional<double>> found;
    for (const int64_t step : {0, 5}) {
      MetricsRow row{.step = step, .values = {}};
      objective.evaluate(student_, evaluated_batches(domains), world_, row);
      found.emplace_back();
      for (const auto& [name, value] : row.values)
        if (name == "eval_kd_loss") found.back() = std::get<double>(value);
    }
    for (const uint64_t id : asked.ids)
      EXPECT_GE(id, kFirstEvaluationRequest) << "a step asks by the same id";
    agent.close();
    agent.join();
    return found;
  }

  parallel::World world_{{.role = "student", .layout = {}}};
  const roles::Trainer student_{nano_llama(1), world_, {}};
};

TEST_F(DistillEvaluation, IsTheMeanDivergenceOfTheTargets) {
  const c10::NoGradGuard no_grad;
  const double expected = expected_kl(nano_llama(1), nano_llama(2), "");
  ASSERT_GT(expected, 0.01);
  const auto found = evaluate("", {"math", "code", "math"});
  ASSERT_TRUE(found.at(0) && found.at(1));
  EXPECT_NEAR(*found[0], expected, 1e-5 * expected);
  EXPECT_EQ(*found[0], *found[1]);
}

// Samples that no teacher is for are no error here, as they were none before.
TEST_F(DistillEvaluation, LeavesOutSamplesThatNoTeacherIsFor) {
  const c10::NoGradGuard no_grad;
  const double of_math = expected_kl(nano_llama(1), nano_llama(2), "math");
  EXPECT_GT(std::abs(of_math - expected_kl(nano_llama(1), nano_llama(2), "")), 1e-4);
  const auto found = evaluate("math", {"math", "code", "math"});
  ASSERT_TRUE(found.at(0));
  EXPECT_NEAR(*found[0], of_math, 1e-5 * of_math);
  EXPECT_EQ(evaluate("math", {"code", "code", "code"}).at(0), std::nullopt);
}

}  // namespace
}  // namespace retort::recipes
