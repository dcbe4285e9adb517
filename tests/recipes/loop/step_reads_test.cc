// How often the host waits for a device in an optimizer step of each recipe: on the stand-in, which
// writes down what is read of it, and what is copied to it. The numbers are exact, so that a read
// or a copy more fails.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <c10/util/ScopeExit.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "recipes/distill/objective.h"
#include "recipes/dpo/objective.h"
#include "recipes/kto/objective.h"
#include "recipes/run/loop/train_loop.h"
#include "recipes/sft/objective.h"
#include "rpc/agent.h"
#include "tests/losses/stand_in_device.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/recipes/objectives/grpo_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using Reads = std::vector<std::string>;
using test::FakeFrozenRole;
using test::nano_llama;

constexpr size_t kMicroBatches = 3;

// What is copied to the device: those that the host waits for, and how many there are in all.
struct Copies {
  Reads waited;
  size_t all = 0;

  static Copies of(const Reads& copies) {
    Copies found{.all = copies.size()};
    for (const std::string& copy : copies)
      if (copy.starts_with("waits")) found.waited.push_back(copy);
    return found;
  }
};

// What is read of the device in the second of three steps: the first may prepare what the others
// have, the last is saved.
Reads reads_of_a_step(Objective& objective, roles::Trainer& trainer, parallel::World& world,
                      Copies* copies = nullptr) {
  test::TemporaryFolder folder;
  CheckpointStore checkpoints(folder.path(), test::source_folder() / "tests/recipes/goldens/llama",
                              {});
  test::RecordedReads recorded;
  Reads second;
  const auto after_step = [&](int64_t step) {
    Reads reads = recorded.take();
    const Copies to_device = Copies::of(recorded.take_copies_to_device());
    if (step != 2) return;
    second = std::move(reads);
    if (copies != nullptr) *copies = to_device;
  };
  run_train_loop({.trainer = trainer,
                  .world = world,
                  .objective = objective,
                  .evaluator = {},
                  .checkpoints = checkpoints},
                 {.seed = 1, .layout = {}}, {.max_steps = 3}, {.on_step = after_step});
  return second;
}

roles::Trainer trainer_there(parallel::World& world) {
  models::Decoder decoder =
      models::Decoder::random(roles::nano_model(models::Family::kLlama, true, 2), 1, at::kFloat, {},
                              test::stand_in_device());
  return roles::Trainer(std::move(decoder), world, {});
}

data::Sample sample(int32_t first, int32_t length) {
  data::Sample sample;
  for (int32_t i = 0; i < length; ++i) {
    sample.input_ids.push_back((first + 7 * i) % 67);
    sample.is_target.push_back(i >= 2);
  }
  sample.origin = "rows.jsonl:" + std::to_string(first);
  return sample;
}

data::BatchStream::Step samples(int64_t) {
  data::BatchStream::Step step;
  for (int32_t i = 0; i < static_cast<int32_t>(kMicroBatches); ++i)
    step.micro_batches.push_back(data::make_micro_batch({sample(1 + i, 6), sample(5, 9 + i)}));
  return step;
}

// What every step reads at its end: the norms of the gradients of 28 parameters.
const std::string kNorms = "copy Double[28]";

class StepReads : public testing::Test {
 protected:
  Reads of_distill(roles::PayloadKind kind, double kd_ratio = 1, size_t teachers = 1) {
    std::vector<TeacherRoute> routes(teachers);
    for (size_t i = 0; i < teachers; ++i)
      routes[i].client = std::make_unique<FakeFrozenRole>(
          nano_llama(2 + i), roles::PayloadSpec{.kind = kind, .top_k = 8});
    return of_routes(std::move(routes), kd_ratio);
  }
  Reads of_routes(std::vector<TeacherRoute> routes, double kd_ratio = 1) {
    rpc::Agent agent({.name = "student/0", .secret = "secret"});
    DistillObjective objective(samples, agent, std::move(routes),
                               {.divergence = {.kd_ratio = kd_ratio}});
    const auto close = c10::make_scope_exit([&] {
      agent.close();
      agent.join();
    });
    return reads_of_a_step(objective, trainer_, world_, &copies_);
  }
  // All of the student's parameters as they are.
  at::Tensor parameters() const {
    std::vector<at::Tensor> flat;
    for (const parallel::NamedParameter& parameter : trainer_.decoder().parameters())
      flat.push_back(parameter.value.detach().cpu().flatten());
    return at::cat(flat);
  }
  std::unique_ptr<Reference> reference() {
    return std::make_unique<Reference>(
        std::make_unique<FakeFrozenRole>(
            nano_llama(2), roles::PayloadSpec{.kind = roles::PayloadKind::kTargetLogProbs}),
        &world_.tp(),
        std::make_unique<ReferenceCache>(folder_ / "cache", std::string(64, 'a'), folder_ / "run",
                                         0));
  }

  test::TemporaryFolder folder_;
  parallel::World world_{{.role = "student", .layout = {}}};
  roles::Trainer trainer_ = trainer_there(world_);
  Copies copies_;  // of the last call
};

TEST_F(StepReads, Sft) {
  SftObjective objective(samples);
  // Of each micro-batch entropy, hits and loss.
  EXPECT_EQ(reads_of_a_step(objective, trainer_, world_, &copies_),
            (Reads{"copy Double[9]", kNorms}));
  // To the device go a micro-batch's tokens in one copy, and its targets in another.
  EXPECT_EQ(copies_.waited, Reads{});
  EXPECT_EQ(copies_.all, 2 * kMicroBatches);
}

// Of each micro-batch seven sums, what is wrong with the teacher's rows, and the loss.
TEST_F(StepReads, DistillOfEveryPayload) {
  for (const auto kind :
       {roles::PayloadKind::kFull, roles::PayloadKind::kTopK, roles::PayloadKind::kHiddenStates}) {
    EXPECT_EQ(of_distill(kind), (Reads{"copy Double[27]", kNorms}));
    // Wide answers that came through the host are waited for, one of each micro-batch.
    const bool wide = kind != roles::PayloadKind::kTopK;
    EXPECT_EQ(copies_.waited.size(), wide ? kMicroBatches : 0);
    EXPECT_EQ(copies_.all, 3 * kMicroBatches);
  }
}

// Of each micro-batch eight numbers for each teacher, and the loss.
TEST_F(StepReads, DistillWithSeveralTeachers) {
  EXPECT_EQ(of_distill(roles::PayloadKind::kFull, 0.5, /*teachers=*/2),
            (Reads{"copy Double[51]", kNorms}));
}

// A teacher one of whose rows is no distribution.
class DamagedRole : public FakeFrozenRole {
 public:
  using FakeFrozenRole::FakeFrozenRole;
  roles::Payload receive(roles::PendingPayload pending, double* waited) override {
    roles::Payload payload = FakeFrozenRole::receive(std::move(pending), waited);
    payload.logps[2][0] = std::nan("");
    return payload;
  }
};

// What is read late ends the step all the same, before it changes anything.
class DamagedPayload : public StepReads, public testing::WithParamInterface<roles::PayloadKind> {};

TEST_P(DamagedPayload, IsRefusedWithItsRow) {
  std::vector<TeacherRoute> routes(1);
  routes[0].client = std::make_unique<DamagedRole>(
      nano_llama(2), roles::PayloadSpec{.kind = GetParam(), .top_k = 8});
  const at::Tensor before = parameters();
  const Error error = test::error_of([&] { of_routes(std::move(routes)); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
  ASSERT_FALSE(error.context().empty());
  EXPECT_EQ(error.context()[0], (std::pair<std::string, std::string>("row", "2")));
  EXPECT_TRUE(at::equal(parameters(), before));
}
INSTANTIATE_TEST_SUITE_P(Kinds, DamagedPayload,
                         testing::Values(roles::PayloadKind::kFull, roles::PayloadKind::kTopK));

// The loss of every step's second micro-batch is infinite.
class InfiniteObjective : public SftObjective {
 public:
  using SftObjective::SftObjective;

 protected:
  at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows,
                        const data::MicroBatch& batch, StepSums& sums) override {
    const at::Tensor loss = SftObjective::batch_loss(head, rows, batch, sums);
    return ++calls_ % kMicroBatches == 2 ? loss / 0 : loss;
  }

 private:
  size_t calls_ = 0;
};

TEST_F(StepReads, ALossThatIsNotFiniteNamesItsSamples) {
  const at::Tensor before = parameters();
  InfiniteObjective objective(samples);
  const std::string message =
      test::message_of([&] { reads_of_a_step(objective, trainer_, world_); });
  EXPECT_NE(message.find("the loss is inf on samples rows.jsonl:2, rows.jsonl:5"),
            std::string::npos)
      << message;
  EXPECT_TRUE(at::equal(parameters(), before));
}

data::PairBatchStream::Step pairs(int64_t) {
  data::PairBatchStream::Step step;
  for (int32_t i = 0; i < static_cast<int32_t>(kMicroBatches); ++i) {
    data::PreferenceSample pair;
    pair.prompt_ids = {3 + i, 4, 5};
    pair.chosen_ids = {9, 8, 7};
    pair.rejected_ids = {5, 4};
    step.micro_batches.push_back(data::make_pair_micro_batch({pair}));
  }
  return step;
}

TEST_F(StepReads, Dpo) {
  DpoObjective objective(pairs, reference(), {});
  // Of each micro-batch five tokens' log-probabilities and mean logits.
  EXPECT_EQ(reads_of_a_step(objective, trainer_, world_, &copies_),
            (Reads{"copy Float[10]", "copy Float[10]", "copy Float[10]", kNorms}));
  // Autograd copies the gradient of what was read back. Nothing is queued then.
  EXPECT_EQ(copies_.waited, Reads(kMicroBatches, "waits Float[10]"));
  EXPECT_EQ(copies_.all, 4 * kMicroBatches);
}

data::UnpairedBatchStream::Step judged(int64_t) {
  data::UnpairedBatchStream::Step step;
  for (int32_t i = 0; i < static_cast<int32_t>(kMicroBatches); ++i) {
    data::UnpairedRow row;
    row.sample.prompt_ids = {3 + i, 4, 5};
    row.sample.completion_ids = {9, 8, 7};
    row.sample.desirable = i == 1;
    row.other_completion_ids = {5, 4};
    step.micro_batches.push_back(data::make_unpaired_micro_batch({row}, 16));
  }
  return step;
}

TEST_F(StepReads, Kto) {
  KtoObjective objective(judged, trainer_, reference(), {});
  // The mismatched completions of all micro-batches before the first, then as dpo.
  EXPECT_EQ(reads_of_a_step(objective, trainer_, world_, &copies_),
            (Reads{"copy Float[6]", "copy Float[6]", "copy Float[6]", "copy Float[6]", kNorms}));
  EXPECT_EQ(copies_.waited, Reads(kMicroBatches, "waits Float[6]"));
}

class GrpoStepReads : public GrpoTest {
 protected:
  GrpoStepReads() : GrpoTest(test::stand_in_device()) {}
};

TEST_F(GrpoStepReads, Grpo) {
  const Run run = start({.max_steps = 3});
  // Of each micro-batch its tokens' log-probabilities and entropies. The model has 24 parameters.
  Copies copies;
  EXPECT_EQ(reads_of_a_step(*run.objective, trainer_, world_, &copies),
            (Reads{"copy Float[24]", "copy Float[22]", "copy Float[14]", "copy Double[24]"}));
  EXPECT_EQ(copies.waited, (Reads{"waits Float[24]", "waits Float[22]", "waits Float[14]"}));
}

}  // namespace
}  // namespace retort::recipes
