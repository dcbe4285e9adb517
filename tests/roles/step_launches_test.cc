// What a training step asks of a device, counted on the stand-in with the emulated kernels: the
// launches of a layer, and what passes over the logits of the losses. The numbers are exact, so
// that a launch or a pass more fails. Attention is left out: the stand-in has it of operators,
// where a GPU has one kernel each way.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "roles/trainer/trainer.h"
#include "tests/kernels/named_kernels.h"
#include "tests/losses/stand_in_device.h"
#include "tests/losses/stand_in_operators.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {
namespace {

using test::Launches;
using test::named_kernels;
using test::stand_in_device;

models::PackedTokens tokens() {
  std::vector<std::vector<int32_t>> rows(2);
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < 5 + r; ++i)
      rows[r].push_back(static_cast<int32_t>(3 * i + 11 * r));
  return models::pack_rows(rows);
}

struct Asked {
  Launches kernels, operators;
};

// The second step of a model of so many layers: the first may prepare what others have.
Asked asked_of_a_step(int64_t layers) {
  test::RecordedOperators operators;
  parallel::World world({.role = "student", .layout = {}});
  models::Decoder decoder =
      models::Decoder::random(nano_model(models::Family::kQwen3, /*tied=*/true, layers), 3,
                              at::kFloat, {}, stand_in_device());
  Trainer trainer(std::move(decoder), world, {});
  for (int step = 0; step < 2; ++step) {
    named_kernels().take();
    operators.take();
    trainer.begin_step();
    const at::Tensor hidden = trainer.hidden(tokens());
    const at::Tensor targets = at::arange(hidden.size(0));
    const models::Head head = trainer.decoder().head();
    const at::Tensor loss =
        losses::linear_cross_entropy(hidden, head.weight, {}, targets, 0, head.vocab).loss_sum;
    trainer.backward(loss, /*last=*/true);
    trainer.finish_step(static_cast<double>(targets.numel()));
  }
  return {named_kernels().take(), operators.take()};
}

// What `more` has and `fewer` has not.
Launches difference(const Launches& more, const Launches& fewer) {
  Launches left;
  for (const auto& [name, count] : more) {
    const auto found = fewer.find(name);
    const int64_t others = found == fewer.end() ? 0 : found->second;
    if (count != others) left[name] = count - others;
  }
  return left;
}

int64_t count_of(const Launches& launches, const std::vector<std::string>& names) {
  int64_t sum = 0;
  for (const std::string& name : names)
    if (const auto found = launches.find(name); found != launches.end()) sum += found->second;
  return sum;
}

std::string text_of(const Launches& launches) {
  std::string text;
  for (const auto& [name, count] : launches)
    text += name + " " + std::to_string(count) + "\n";
  return text;
}

// Of 33 launches a layer and step eleven are kernels of ours and 21 products.
TEST(StepLaunches, OfALayer) {
  const Asked two = asked_of_a_step(2), three = asked_of_a_step(3);
  EXPECT_EQ(difference(three.kernels, two.kernels),
            (Launches{{"retort_add_rms_norm_f32", 2},
                      {"retort_column_sum_f32", 3},
                      {"retort_gated_silu_backward_f32", 1},
                      {"retort_gated_silu_f32", 1},
                      {"retort_qk_norm_rope_backward_f32", 1},
                      {"retort_qk_norm_rope_f32", 1},
                      {"retort_rms_norm_backward_f32", 2}}));
  EXPECT_EQ(two.kernels.at("retort_adamw"), 1);
  EXPECT_EQ(three.kernels.at("retort_adamw"), 1);

  // Forward, by the input and by the weight, of q, k, v, o, gate, up and down.
  const Launches of_a_layer = difference(three.operators, two.operators);
  EXPECT_EQ(count_of(of_a_layer, {"aten::mm", "aten::addmm"}), 21) << text_of(of_a_layer);
  testing::Test::RecordProperty("operators_of_a_layer", text_of(of_a_layer));
}

class LossPasses : public testing::Test {
 protected:
  static constexpr int64_t kRows = 40, kVocab = 64, kWidth = 8;

  at::Tensor random(int64_t rows, int64_t width) const {
    return at::randn({rows, width}).to(stand_in_device());
  }
  // What a loss and its gradient ask, of which nothing but products may be as large as the logits:
  // the rest of their passes is in the kernels, whose heads have the bytes by formula.
  void expect_products_alone(const Launches& kernels, int64_t products,
                             const std::function<at::Tensor()>& loss) {
    test::RecordedOperators operators;
    named_kernels().take();
    loss().backward();
    EXPECT_EQ(named_kernels().take(), kernels);

    for (const std::string& name : operators.of_at_least(kRows * kVocab))
      EXPECT_TRUE(name == "aten::mm" || name == "aten::addmm") << name << " passes over the logits";
    const Launches all = operators.take();
    EXPECT_EQ(count_of(all, {"aten::mm", "aten::addmm"}), products) << text_of(all);
  }

  const at::Tensor targets_ = at::arange(kRows) % kVocab;
  const at::Tensor hidden_ = random(kRows, kWidth).requires_grad_();
  const at::Tensor weight_ = random(kVocab, kWidth).requires_grad_();
};

// 10 V bytes a row are 2.5 passes over float32 logits, with a gradient in bfloat16.
TEST_F(LossPasses, OfCrossEntropy) {
  expect_products_alone({{"retort_ce_rows_f32", 1}}, 3, [&] {
    return losses::linear_cross_entropy(hidden_, weight_, {}, targets_).loss_sum;
  });
}

// 18 V bytes are 4.5 passes; those of the JSD 26 V, 6.5.
TEST_F(LossPasses, OfDivergences) {
  const losses::TeacherHidden teacher{random(kRows, kWidth), random(kVocab, kWidth), {}};
  for (const auto type : {losses::DivergenceType::kForwardKl, losses::DivergenceType::kJsd})
    expect_products_alone({{"retort_divergence_rows_f32", 1}}, 4, [&] {
      return losses::linear_distill(hidden_, weight_, {}, targets_, teacher, {.type = type})
          .loss_sum;
    });
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  retort::test::stand_in_device();  // before LibTorch counts the devices
  retort::kernels::register_device_kernels(std::make_unique<retort::test::NamedKernels>());
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
