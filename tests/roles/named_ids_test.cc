// Scores at ids that the student names: what the payload is, what a teacher keeps for them, and
// that losing it changes no bit.
#include "roles/payload/named_ids.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "models/checkpoint.h"
#include "roles/payload/payload.h"
#include "roles/teacher/kept_rows.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

std::string support_model() {
  return (test::source_folder() / "tests/recipes/goldens/teacher").string();
}

PayloadSpec named_spec(Support support, double temperature = 1.0, int64_t common = 0) {
  return {.kind = PayloadKind::kTopK,
          .top_k = 5,
          .temperature = temperature,
          .common_vocab = common,
          .support = support};
}

// Distinct in each row, below 61, other ones in each row.
at::Tensor some_ids(int64_t rows, int64_t k) {
  return (at::arange(rows).unsqueeze(1) * 7 + at::arange(k).unsqueeze(0) * 3)
      .remainder(61)
      .to(at::kInt);
}

ForwardRequest support_request(uint64_t id, Support support) {
  return {.request_id = id,
          .step = 1,
          .input_ids = at::tensor({3, 1, 4, 1, 5, 9, 2, 6}, at::kInt),
          .cu_seqlens = at::tensor({0, 5, 8}, at::kInt),
          .positions = at::tensor({0, 1, 2, 3, 5, 6}, at::kInt),
          .spec = named_spec(support)};
}

// The definition, from the whole distribution in double precision: which ids, what stands there,
// what is left.
class NamedIdsTest : public ::testing::TestWithParam<std::tuple<Support, double, int64_t>> {};

TEST_P(NamedIdsTest, AreTheFullPayloadThere) {
  const auto [support, temperature, common] = GetParam();
  const models::Decoder decoder = models::load_decoder(support_model(), at::kFloat);
  const int64_t vocab = common > 0 ? common : decoder.config().vocab_size;
  const at::Tensor hidden = at::arange(6 * decoder.config().hidden_size, at::kFloat)
                                .sin()
                                .mul(3)
                                .view({6, decoder.config().hidden_size});
  PayloadSpec spec = named_spec(support, temperature, common);
  const at::Tensor named = some_ids(6, 5);
  const at::Tensor weight = decoder.head_weight().detach();
  const Payload got = make_payload(hidden, weight, spec, named);
  spec.kind = PayloadKind::kFull;
  spec.support = Support::kTeacher;
  const at::Tensor full = make_payload(hidden, weight, spec).logps.to(at::kDouble).contiguous();
  ASSERT_EQ(got.ids.size(1), support == Support::kUnion ? 10 : 5);
  EXPECT_EQ(got.ids.sizes(), got.logps.sizes());

  bool overlap = false;
  for (int64_t r = 0; r < 6; ++r) {
    std::set<int64_t> expected;
    for (int64_t i = 0; i < 5; ++i)
      expected.insert(named[r][i].item<int64_t>());
    if (support == Support::kUnion) {
      const double* row = full.const_data_ptr<double>() + r * vocab;
      for (int64_t i = 0; i < 5; ++i) {
        std::vector<int64_t> order(static_cast<size_t>(vocab));
        for (int64_t v = 0; v < vocab; ++v)
          order[static_cast<size_t>(v)] = v;
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return row[a] > row[b]; });
        expected.insert(order[static_cast<size_t>(i)]);
      }
      overlap |= expected.size() < 10;
    }

    std::multiset<int64_t> ids;
    double rest = 1;
    for (int64_t i = 0; i < got.ids.size(1); ++i) {
      const int64_t id = got.ids[r][i].item<int64_t>();
      const double logp = got.logps[r][i].item<double>();
      if (id < 0) {
        EXPECT_EQ(logp, -INFINITY);
        continue;
      }
      ids.insert(id);
      EXPECT_NEAR(logp, full[r][id].item<double>(), 1e-6 * std::max(1.0, std::abs(logp)));
      rest -= std::exp(full[r][id].item<double>());
    }
    EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.end()),
              std::vector<int64_t>(expected.begin(), expected.end()));
    EXPECT_NEAR(std::exp(got.log_tail[r].item<double>()), rest, 1e-5);
  }
  if (support == Support::kUnion) {
    EXPECT_TRUE(overlap) << "or no row is padded";
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, NamedIdsTest,
                         ::testing::Combine(::testing::Values(Support::kStudent, Support::kUnion),
                                            ::testing::Values(1.0, 0.6),
                                            ::testing::Values(int64_t{0}, int64_t{61})));

// More than half of the vocabulary from each side: rows that name all ids have no tail.
TEST(NamedIds, OfAllIdsLeaveNoTail) {
  const at::Tensor hidden = at::arange(8, at::kFloat).sin().view({2, 4});
  const at::Tensor weight = at::arange(24, at::kFloat).cos().view({6, 4});
  PayloadSpec spec = named_spec(Support::kUnion);
  spec.top_k = 6;
  const at::Tensor named = at::arange(6, at::kInt).unsqueeze(0).repeat({2, 1});
  const Payload got = make_payload(hidden, weight, spec, named);
  EXPECT_EQ(got.ids.size(1), 6);
  EXPECT_TRUE(got.log_tail.eq(-INFINITY).all().item<bool>());
  EXPECT_NEAR(got.logps.exp().sum().item<double>(), 2, 1e-5);
}

TEST(NamedIds, BytesAreThoseOfTheFormula) {
  for (const bool bfloat16 : {false, true})
    for (const Support support : {Support::kTeacher, Support::kStudent, Support::kUnion}) {
      PayloadSpec spec = named_spec(support);
      spec.bfloat16 = bfloat16;
      const int64_t logp = bfloat16 ? 2 : 4;
      const int64_t expected = support == Support::kTeacher   ? 5 * (4 + logp) + 4
                               : support == Support::kStudent ? 5 * logp + 4
                                                              : 10 * (4 + logp) + 4;
      EXPECT_EQ(payload_bytes_per_row(spec, 32, 64, 4), expected);
      EXPECT_EQ(named_bytes_per_row(spec, 64), support == Support::kTeacher ? 0 : 20);
    }
}

TEST(NamedIds, AUnionIsCheckedOnArrival) {
  ForwardRequest request = support_request(1, Support::kUnion);
  request.ids = some_ids(6, 5);
  Teacher teacher("teacher/0", models::load_decoder(support_model(), at::kFloat),
                  models::Tokenizer::load(support_model()));
  const Payload good = ask_teacher(teacher, request);
  check_payload(good, good.label, 64, 0);
  const auto corrupt = [&](const std::function<void(Payload&)>& change) {
    Payload bad = good;
    bad.ids = good.ids.clone();
    bad.logps = good.logps.clone();
    change(bad);
    return test::code_of([&] { check_payload(bad, good.label, 64, 0); });
  };
  EXPECT_EQ(corrupt([](Payload& p) { p.ids[0][0] = -1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(corrupt([](Payload& p) { p.ids[0][0] = 64; }), ErrorCode::kCorrupt);
  EXPECT_EQ(corrupt([](Payload& p) { p.ids[0][9] = -2; }), ErrorCode::kCorrupt);
  EXPECT_EQ(corrupt([](Payload& p) { p.ids[0][9] = -1, p.logps[0][9] = -1; }), ErrorCode::kCorrupt);
}

TEST(NamedIds, BadOnesAreRefusedWhenTheyArrive) {
  Teacher teacher("teacher/0", models::load_decoder(support_model(), at::kFloat),
                  models::Tokenizer::load(support_model()));
  const auto refused = [&](const std::function<void(ForwardRequest&)>& change) {
    ForwardRequest request = support_request(1, Support::kStudent);
    request.ids = some_ids(6, 5);
    change(request);
    const auto error = test::thrown([&] { teacher.enqueue(request, some_call()); });
    return error && error->code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids[1][1] = r.ids[1][0]; }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids[1][1] = -1; }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids[1][1] = 1 << 20; }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids = some_ids(6, 4); }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids = some_ids(5, 5); }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids = r.ids.to(at::kLong); }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.spec.support = Support::kTeacher; }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.spec.kind = PayloadKind::kHiddenStates; }));
  EXPECT_TRUE(refused([](ForwardRequest& r) { r.ids = at::Tensor(), r.parts = 2; }));
  EXPECT_FALSE(refused([](ForwardRequest&) {}));
}

// What a teacher answers with these limits, and how many forward passes that took.
struct Answered {
  Payload payload;
  int64_t forwards = 0;
};
Answered answered_with(KeptRows::Options kept, Support support,
                       std::chrono::milliseconds pause = 0ms) {
  Teacher teacher("teacher/0", models::load_decoder(support_model(), at::kFloat),
                  models::Tokenizer::load(support_model()), {.kept = kept});
  ForwardRequest request = support_request(7, support);
  const Payload first = ask_teacher(teacher, request);
  EXPECT_FALSE(first.ids.defined() || first.logps.defined() || first.hidden.defined());
  // Another request of the same tokens is another request.
  request.request_id = 8;
  ask_teacher(teacher, request);
  request.request_id = 7;
  std::this_thread::sleep_for(pause);
  request.ids = some_ids(6, 5);
  Answered answered{.payload = ask_teacher(teacher, request)};
  answered.forwards = teacher.forwards();
  EXPECT_EQ(teacher.store().num_kept(), 0u);
  return answered;
}

TEST(NamedIds, WhatIsLostIsComputedAgainWithTheSameBits) {
  for (const Support support : {Support::kStudent, Support::kUnion}) {
    const Answered kept = answered_with({}, support);
    EXPECT_EQ(kept.forwards, 2) << "the second request needs no forward pass";
    EXPECT_EQ(kept.payload.ids.defined(), support == Support::kUnion);
    const Answered budget = answered_with({.max_bytes = 0}, support);
    const Answered expired = answered_with({.lease = 1ms}, support, 5ms);
    for (const Answered& lost : {budget, expired}) {
      EXPECT_EQ(lost.forwards, 3);
      EXPECT_TRUE(at::equal(lost.payload.logps, kept.payload.logps));
      EXPECT_TRUE(at::equal(lost.payload.log_tail, kept.payload.log_tail));
      EXPECT_TRUE(support == Support::kStudent || at::equal(lost.payload.ids, kept.payload.ids));
      EXPECT_EQ(lost.payload.label.sequence_hash, kept.payload.label.sequence_hash);
    }
  }
}

// The label is that of these ids: an answer to others is not taken.
TEST(NamedIds, AnAnswerToOtherIdsIsRefused) {
  Teacher teacher("teacher/0", models::load_decoder(support_model(), at::kFloat),
                  models::Tokenizer::load(support_model()));
  ForwardRequest request = support_request(7, Support::kStudent);
  request.ids = some_ids(6, 5);
  const Payload answer = ask_teacher(teacher, request);
  request.ids = request.ids + 1;
  const Payload other = ask_teacher(teacher, request);
  EXPECT_EQ(test::code_of([&] { check_label(other, answer.label); }), ErrorCode::kMismatch);
}

TEST(KeptRows, HaveABudgetAndALease) {
  KeptRows rows({.max_bytes = 100, .lease = 1000ms});
  const at::Tensor all = at::arange(40, at::kFloat).view({10, 4});
  at::Tensor taken;
  rows.keep("a", all.narrow(0, 2, 2), 60, 0);
  rows.keep("b", all, 50, 10);  // does not fit: the older one is wanted sooner
  EXPECT_EQ(rows.size(), 1u);
  EXPECT_FALSE(rows.take("b", 10, taken));
  rows.keep("c", {}, 40, 500);
  EXPECT_EQ(rows.bytes(), 100);
  ASSERT_TRUE(rows.take("a", 999, taken));
  EXPECT_TRUE(at::equal(taken, all.narrow(0, 2, 2)));
  EXPECT_EQ(taken.storage().nbytes(), taken.nbytes()) << "what it was cut from is kept too";
  EXPECT_FALSE(rows.take("a", 999, taken)) << "rows are taken once";
  EXPECT_FALSE(rows.take("c", 1500, taken)) << "its lease is over";
  EXPECT_EQ(rows.bytes(), 0);
}

}  // namespace
}  // namespace retort::roles
