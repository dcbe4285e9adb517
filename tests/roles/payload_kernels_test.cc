// Top-k payloads of a teacher by the kernel, emulated on the stand-in device: the ids of the CPU's,
// and numbers of float64; and that nothing of them is read by the host.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sort.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "roles/payload/payload.h"
#include "roles/payload/top_k.h"
#include "tests/kernels/emulated_kernels.h"
#include "tests/losses/stand_in_device.h"

namespace retort::roles {
namespace {

using Reads = std::vector<std::string>;

const emulator::EmulatedKernels* launched = nullptr;  // those of the stand-in

at::Tensor there(const at::Tensor& tensor) { return tensor.to(test::stand_in_device()); }

// States and head of a teacher: its logits are their products.
struct Teacher {
  at::Tensor hidden, head;
};

constexpr int64_t kRows = 3, kHidden = 4, kVocab = 301;

Teacher smooth(float scale = 3, int64_t vocab = kVocab) {
  return {at::sin(at::arange(kRows * kHidden, at::kFloat)).view({kRows, kHidden}) * scale,
          at::cos(at::arange(vocab * kHidden, at::kFloat) * 3).view({vocab, kHidden})};
}

// A few whole numbers, so that many logits are equal.
Teacher tied() {
  const auto small = [](int64_t rows, int64_t phase) {
    return ((at::arange(rows * kHidden, at::kFloat) * 7 + phase).remainder(5) - 2)
        .view({rows, kHidden});
  };
  return {small(kRows, 1), small(kVocab, 3)};
}

// Only `finite` ids, far apart, can be.
Teacher mostly_impossible(int64_t finite) {
  Teacher made = smooth();
  made.hidden = made.hidden.abs() + 0.1;
  const at::Tensor each = at::arange(kVocab, at::kLong);
  const at::Tensor can_be = each.remainder(kVocab / finite).eq(1);
  made.head = made.head.masked_fill(can_be.logical_not().unsqueeze(1), -INFINITY);
  return made;
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                  const char* what) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type()) << what;
  const at::Tensor numbers = got.cpu().to(at::kFloat), wanted = expected.to(at::kFloat);
  EXPECT_TRUE(at::allclose(numbers, wanted, tolerance, tolerance))
      << what << ": " << (numbers - wanted).abs().max().item<float>();
}

void expect_payload(const Payload& got, const Payload& expected) {
  EXPECT_EQ(got.ids.scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(got.ids.cpu(), expected.ids));
  // A difference of the last bit may decide how a bfloat16 is rounded.
  expect_close(got.logps, expected.logps, expected.label.spec.bfloat16 ? 1.0 / 128 : 1e-6, "logps");
  expect_close(got.log_tail, expected.log_tail, 1e-6, "log_tail");
  EXPECT_NEAR(got.masked_mass_sum, expected.masked_mass_sum, 1e-6);
}

// The CPU's payload with numbers that are formed in float64: its own are differences of float32
// logs, which lose digits where logits are large.
Payload expected_payload(const Teacher& teacher, const PayloadSpec& spec) {
  Payload payload = make_payload(teacher.hidden, teacher.head, spec);
  at::Tensor logits = at::matmul(teacher.hidden, teacher.head.t());
  if (spec.temperature != 1) logits.div_(spec.temperature);
  if (spec.common_vocab > 0) logits = logits.narrow(1, 0, spec.common_vocab);

  const at::Tensor x = logits.to(at::kDouble), ids = payload.ids.to(at::kLong);
  const at::Tensor log_total = at::logsumexp(x, 1);
  payload.logps = (x.gather(1, ids) - log_total.unsqueeze(1)).to(payload.logps.scalar_type());
  payload.log_tail = (at::logsumexp(x.scatter(1, ids, -INFINITY), 1) - log_total).to(at::kFloat);
  return payload;
}

// What is read of the device for a payload that stays there, and one that goes to the host.
void compare(const Teacher& teacher, const PayloadSpec& spec, int64_t launches = 1) {
  SCOPED_TRACE("k " + std::to_string(spec.top_k) + " temperature " +
               std::to_string(spec.temperature) + " common " + std::to_string(spec.common_vocab));
  const Payload expected = expected_payload(teacher, spec);
  const at::Tensor hidden = there(teacher.hidden), head = there(teacher.head);
  const bool masks = spec.common_vocab > 0;
  const auto reads_of_mass = [&] { return masks ? Reads{"item Double[]"} : Reads{}; };

  test::RecordedReads recorded;
  const int64_t before = launched->num_launches();
  const Payload stays = make_payload(hidden, head, spec, {}, {}, 0, hidden.device());
  EXPECT_EQ(launched->num_launches() - before, launches);
  if (launches > 0) {
    EXPECT_EQ(recorded.take(), reads_of_mass());
  }
  EXPECT_EQ(stays.ids.device(), hidden.device());
  expect_payload(stays, expected);

  recorded.take();
  const Payload goes = make_payload(hidden, head, spec);
  if (launches > 0) {
    EXPECT_EQ(recorded.take().size(), reads_of_mass().size() + 3) << "ids, logps, log_tail";
  }
  EXPECT_TRUE(goes.ids.is_cpu() && goes.logps.is_cpu() && goes.log_tail.is_cpu());
  expect_payload(goes, expected);
}

TEST(PayloadKernels, TheCpusTopK) {
  for (const int64_t k : {int64_t{1}, int64_t{64}, kVocab})
    compare(smooth(), {.kind = PayloadKind::kTopK, .top_k = k, .temperature = 0.7});
  compare(smooth(), {.kind = PayloadKind::kTopK, .top_k = 64, .temperature = 2});
  compare(smooth(), {.kind = PayloadKind::kTopK, .top_k = 64});
  compare(smooth(), {.kind = PayloadKind::kTopK, .top_k = 64, .bfloat16 = true});
}

TEST(PayloadKernels, MaskedIdsLeaveTheDistribution) {
  for (const int64_t k : {1, 64, 290})
    compare(smooth(), {.kind = PayloadKind::kTopK, .top_k = k, .common_vocab = 290});
  compare(smooth(3, 304), {.kind = PayloadKind::kTopK, .top_k = 64, .common_vocab = 303});
}

TEST(PayloadKernels, OfEqualLogitsTheLowestIds) {
  for (const int64_t k : {int64_t{1}, int64_t{64}, kVocab})
    compare(tied(), {.kind = PayloadKind::kTopK, .top_k = k, .temperature = 0.7});
}

TEST(PayloadKernels, IdsThatCannotBe) {
  compare(mostly_impossible(100), {.kind = PayloadKind::kTopK, .top_k = 64});
  // Fewer than k can be: the tail is nothing, and ids of no probability fill the row.
  compare(mostly_impossible(10), {.kind = PayloadKind::kTopK, .top_k = 64});
}

// The tail is e^-100 and less, beside ids that are summed with it.
TEST(PayloadKernels, ASmallTailKeepsItsDigits) {
  for (const int64_t k : {1, 64, 300})
    compare(smooth(300), {.kind = PayloadKind::kTopK, .top_k = k});
}

// What the kernel does not know is ATen's.
TEST(PayloadKernels, OtherwiseByOperators) {
  compare(smooth(3, 1201), {.kind = PayloadKind::kTopK, .top_k = 1201}, /*launches=*/0);
  compare(smooth(3, 1201), {.kind = PayloadKind::kTopK, .top_k = 1025}, 0);
  compare(smooth(3, 1201), {.kind = PayloadKind::kTopK, .top_k = 1024});

  // A union's own ids come from the kernel, its sums do not.
  const Teacher teacher = smooth();
  const at::Tensor named = at::arange(kRows * 8, at::kLong).view({kRows, 8}).remainder(kVocab);
  for (const Support support : {Support::kStudent, Support::kUnion}) {
    const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = 8, .support = support};
    const int64_t before = launched->num_launches();
    expect_payload(make_payload(there(teacher.hidden), there(teacher.head), spec, named),
                   make_payload(teacher.hidden, teacher.head, spec, named));
    EXPECT_EQ(launched->num_launches() - before, support == Support::kUnion ? 1 : 0);
  }
}

// Values at any place of a wider matrix, as a rank of a split vocabulary has them.
TEST(TopKByKernel, ColumnsOfAWiderMatrix) {
  const at::Tensor wide = ((at::arange(7 * 88, at::kFloat) * 7).remainder(5)).view({7, 88});
  const at::Tensor wide_there = there(wide);
  for (const int64_t first : {0, 4, 5}) {
    const at::Tensor values = wide.narrow(1, first, 80);
    const auto [sorted, order] = at::sort(values, /*stable=*/true, /*dim=*/1, /*descending=*/true);
    for (const int64_t k : {0, 1, 17, 80}) {
      test::RecordedReads recorded;
      const auto [top, ids] = top_k(wide_there.narrow(1, first, 80), k);
      EXPECT_EQ(recorded.take(), Reads{});
      EXPECT_TRUE(at::equal(top.cpu(), sorted.narrow(1, 0, k))) << k;
      EXPECT_TRUE(at::equal(ids.cpu(), order.narrow(1, 0, k))) << k;
    }
  }
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  retort::test::stand_in_device();
  auto kernels = std::make_unique<retort::emulator::EmulatedKernels>(
      1, at::DeviceType::PrivateUse1, retort::test::with_open_stand_in);
  retort::roles::launched = kernels.get();
  retort::kernels::register_device_kernels(std::move(kernels));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
