// Payloads of a teacher on a device, as far as that can be seen without one: on a stand-in, against
// the CPU; and the order of ties.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "parallel/world.h"
#include "roles/payload/payload.h"
#include "roles/payload/top_k.h"
#include "tests/losses/stand_in_device.h"
#include "tests/parallel/rank_process.h"

namespace retort::roles {
namespace {

using parallel::testing::require;
using test::ChildProcess;

at::Tensor there(const at::Tensor& tensor) { return tensor.to(test::stand_in_device()); }

// A few whole numbers: many equal logits.
at::Tensor small(at::IntArrayRef sizes, int64_t phase) {
  return ((at::arange(c10::multiply_integers(sizes), at::kLong) * 7 + phase).remainder(5) - 2)
      .view(sizes)
      .to(at::kFloat);
}

std::vector<PayloadSpec> every_spec() {
  std::vector<PayloadSpec> specs;
  for (const int64_t common : {0, 61}) {
    for (const int64_t k : {1, 6, 30, 61, 80})
      for (const bool bfloat16 : {false, true})
        specs.push_back({.kind = PayloadKind::kTopK,
                         .top_k = k,
                         .temperature = 0.7,
                         .bfloat16 = bfloat16,
                         .common_vocab = common});
    specs.push_back({.kind = PayloadKind::kFull, .temperature = 2.0, .common_vocab = common});
    specs.push_back({.kind = PayloadKind::kTargetLogProbs, .common_vocab = common});
    specs.push_back({.kind = PayloadKind::kHiddenStates});
  }
  return specs;
}

// The same bits, at `place`.
void require_same(const Payload& got, const Payload& expected, at::Device place = at::kCPU) {
  const auto same = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
    const std::string what =
        std::string(name) + " of " + std::string(enum_name(expected.label.spec.kind));
    require(a.defined() == b.defined(), what + " is there");
    if (!a.defined()) return;
    require(a.device() == place, what + " is where it should be");
    require(a.scalar_type() == b.scalar_type() && at::equal(a.cpu(), b), what + " is the same");
  };
  same(got.hidden, expected.hidden, "hidden");
  same(got.ids, expected.ids, "ids");
  same(got.logps, expected.logps, "logps");
  same(got.log_tail, expected.log_tail, "log_tail");
  require(got.masked_mass_sum == expected.masked_mass_sum, "masked mass");
}

constexpr int64_t kRows = 37, kVocab = 67, kHidden = 4;

void compare(const parallel::VocabShard& vocab, const at::Tensor& hidden,
             const at::Tensor& weight) {
  const at::Tensor targets = at::arange(kRows, at::kLong);
  for (const PayloadSpec& spec : every_spec()) {
    const Payload expected = make_payload(hidden, weight, spec, targets, vocab);
    require_same(make_payload(there(hidden), there(weight), spec, targets, vocab), expected);
    require_same(make_payload(there(hidden), there(weight), spec, there(targets), vocab), expected);

    // Left on the device: whoever holds the whole vocabulary copies nothing to the host.
    const at::Tensor rows = there(hidden), head = there(weight);
    const int64_t copies = test::stand_in_copies_to_host();
    const Payload stays = make_payload(rows, head, spec, targets, vocab, 0, rows.device());
    const bool may_stay = may_be_on_device(spec.kind);
    if (vocab.whole() && may_stay)
      require(test::stand_in_copies_to_host() == copies, "nothing came to the host");
    require_same(stays, expected, may_stay ? rows.device() : at::Device(at::kCPU));
  }
}

void compare_all(const parallel::VocabShard& vocab, int64_t begin, int64_t count) {
  compare(vocab, small({kRows, kHidden}, 1), small({kVocab, kHidden}, 3).narrow(0, begin, count));
  compare(vocab,
          at::sin(at::arange(kRows * kHidden, at::kFloat)).view({kRows, kHidden}).to(at::kBFloat16),
          at::cos(at::arange(kVocab * kHidden, at::kFloat) * 3)
              .view({kVocab, kHidden})
              .to(at::kBFloat16)
              .narrow(0, begin, count));
}

void split_scenario() {
  parallel::World world(parallel::testing::child_world_options());
  parallel::Group& tp = world.tp();
  const int64_t begin = parallel::vocab_begin(kVocab, tp.size(), tp.rank()),
                end = parallel::vocab_end(kVocab, tp.size(), tp.rank());
  compare_all({.group = &tp, .begin = begin, .total = kVocab}, begin, end - begin);
}

TEST(PayloadDevice, TheSameBitsInHostMemoryAndOnTheDevice) {
  const int64_t before = test::stand_in_operators();
  const int64_t pinned = test::stand_in_pinned_blocks();
  ASSERT_NO_THROW(compare_all({}, 0, kVocab));
  EXPECT_GT(test::stand_in_pinned_blocks(), pinned) << "where chunks are copied to";
  EXPECT_GT(test::stand_in_operators(), before + 500);
}

TEST(PayloadDevice, OfASplitVocabulary) {
  for (const int64_t tp : {2, 3}) {
    parallel::StoreServer store("127.0.0.1");
    for (ChildProcess& rank :
         parallel::testing::spawn_ranks(store, {.scenario = "split", .layout = {.tp = tp}}, tp))
      EXPECT_EQ(rank.wait(Deadline::after(std::chrono::seconds(100))), 0);
  }
}

TEST(PayloadDevice, HashOfTokens) {
  const at::Tensor ids = at::arange(9, at::kInt), offsets = at::tensor({0, 4, 9}, at::kInt);
  EXPECT_EQ(sequence_hash(there(ids), there(offsets), ids), sequence_hash(ids, offsets, ids));
}

// Of equal values the lowest indices, where the k-th and the next are equal too.
TEST(TopK, TakesTheLowestOfEqualIndices) {
  const at::Tensor wide = small({23, 90}, 2), values = wide.narrow(1, 5, 80);  // rows apart
  const auto [sorted, order] = at::sort(values, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  for (const int64_t k : {0, 1, 7, 16, 17, 40, 79, 80})
    for (const at::Tensor& given : {values, there(wide).narrow(1, 5, 80)}) {
      const auto [top, ids] = top_k(given, k);
      EXPECT_TRUE(top.device() == given.device() && ids.device() == given.device());
      EXPECT_TRUE(at::equal(top.cpu(), sorted.narrow(1, 0, k))) << k;
      EXPECT_TRUE(at::equal(ids.cpu(), order.narrow(1, 0, k))) << k;
    }
}

TEST(TopK, NotANumberIsTheLargest) {
  at::Tensor values = small({2, 12}, 0).clone();
  values[1][4] = NAN;
  values[1][9] = INFINITY;
  for (const at::Tensor& given : {values, there(values)}) {
    const auto [top, ids] = top_k(given, 2);
    EXPECT_TRUE(std::isnan(top[1][0].item<float>()));
    EXPECT_EQ(ids[1][0].item<int64_t>(), 4);
    EXPECT_EQ(ids[1][1].item<int64_t>(), 9);
  }
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  return retort::parallel::testing::ranks_or_tests(argc, argv,
                                                   {{"split", retort::roles::split_scenario}});
}
