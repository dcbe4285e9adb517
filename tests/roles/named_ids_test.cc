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
#include <tuple>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/config/config.h"
#include "roles/payload/payload.h"
#include "roles/teacher/answer_computer.h"
#include "roles/teacher/hidden_state_cache.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

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
Answered answered_with(HiddenStateCache::Options kept, Support support, int64_t next_step = 1) {
  Teacher teacher("teacher/0", models::load_decoder(support_model(), at::kFloat),
                  models::Tokenizer::load(support_model()), {.kept = kept});
  ForwardRequest request = support_request(7, support);
  const Payload first = ask_teacher(teacher, request);
  EXPECT_FALSE(first.ids.defined() || first.logps.defined() || first.hidden.defined());
  // Asked once more it is there already. Another request of the same tokens is another request.
  ask_teacher(teacher, request);
  ForwardRequest other = request;
  other.request_id = 8;
  other.step = next_step;
  ask_teacher(teacher, other);
  if (next_step > 1) {  // whose ids are named before those of the first
    other.ids = some_ids(6, 5);
    ask_teacher(teacher, other);
  }
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
    const Answered no_room = answered_with({.max_bytes = 0}, support);
    EXPECT_EQ(no_room.forwards, 1) << "what cannot be kept is not computed ahead";
    const Answered forgotten = answered_with({}, support, 2);
    EXPECT_EQ(forgotten.forwards, 3);
    for (const Answered& lost : {no_room, forgotten}) {
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

// One pass serves a request that keeps and the one that names, whichever stands first, and leaves
// nothing behind.
TEST(NamedIds, ComputedTogetherShareTheirRows) {
  AnswerComputer computer(models::load_decoder(support_model(), at::kFloat), nullptr);
  const ForwardRequest keeps = support_request(7, Support::kStudent);
  ForwardRequest names = keeps;
  names.ids = some_ids(6, 5);
  const auto logps_of = [&](const std::vector<ForwardRequest>& requests) {
    at::Tensor logps;
    size_t delivered = 0;
    computer.compute(requests, [&](size_t index, Payload whole) {
      ++delivered;
      EXPECT_EQ(whole.logps.defined(), !asks_to_keep(requests[index]));
      if (whole.logps.defined()) logps = whole.logps;
    });
    EXPECT_EQ(delivered, requests.size());
    EXPECT_EQ(computer.kept().size(), 0u);
    return logps;
  };
  const at::Tensor alone = logps_of({names});
  EXPECT_TRUE(at::equal(logps_of({keeps, names}), alone));
  EXPECT_TRUE(at::equal(logps_of({names, keeps}), alone));
  EXPECT_EQ(computer.forwards(), 3);

  // What has its rows does not wait for the pass of what stands before it.
  computer.compute({keeps}, [](size_t, const Payload&) {});
  std::vector<size_t> order;
  computer.compute({support_request(8, Support::kStudent), names},
                   [&](size_t index, const Payload&) { order.push_back(index); });
  EXPECT_EQ(order, (std::vector<size_t>{1, 0}));
  EXPECT_EQ(computer.kept().size(), 1u) << "the other's";
}

// Two that would each fit are computed together: what has no room beside the first waits.
TEST(NamedIds, OnlyWhatIsKeptIsComputedAhead) {
  const int64_t bytes = 6 * models::read_model_config(support_model()).hidden_size * 4;
  AnswerComputer computer(models::load_decoder(support_model(), at::kFloat), nullptr, false,
                          {.max_bytes = 2 * bytes - 1});
  const ForwardRequest first = support_request(7, Support::kStudent);
  ForwardRequest second = support_request(8, Support::kStudent);
  size_t delivered = 0;
  computer.compute({first, second}, [&](size_t, const Payload&) { ++delivered; });
  EXPECT_EQ(delivered, 2u);
  EXPECT_EQ(computer.kept().bytes(), bytes);
  second.ids = some_ids(6, 5);
  computer.compute({second}, [&](size_t, const Payload&) {});
  EXPECT_EQ(computer.forwards(), 2) << "it was not kept";
}

TEST(HiddenStateCache, HaveABudgetAndForgetOldSteps) {
  HiddenStateCache rows({.max_bytes = 100});
  const at::Tensor all = at::arange(40, at::kFloat).view({10, 4});
  at::Tensor taken;
  rows.keep("a", 1, all.narrow(0, 2, 2), 60);
  EXPECT_FALSE(rows.has_room(50));
  rows.keep("b", 1, all, 50);  // does not fit: the older one is wanted sooner
  EXPECT_EQ(rows.size(), 1u);
  EXPECT_FALSE(rows.take("b", taken));
  rows.keep("c", 2, {}, 30);
  rows.keep("d", 3, {}, 10);
  EXPECT_EQ(rows.bytes(), 100);
  ASSERT_TRUE(rows.take("a", taken));
  EXPECT_TRUE(at::equal(taken, all.narrow(0, 2, 2)));
  EXPECT_EQ(taken.storage().nbytes(), taken.nbytes()) << "what it was cut from is kept too";
  EXPECT_FALSE(rows.take("a", taken)) << "rows are taken once";
  rows.forget_before(3);
  EXPECT_FALSE(rows.contains("c"));
  EXPECT_TRUE(rows.contains("d"));
  EXPECT_EQ(rows.bytes(), 10);
}

}  // namespace
}  // namespace retort::roles
