// What `retort plan` says of a recipe with a reference.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "launch/plan/plan_json.h"
#include "models/config/config.h"
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {
namespace {

class Plan : public RecipeTest {
 protected:
  Plan() { write_key_files(folder_); }

  std::string of(const char* base, std::vector<std::string> overrides = {}) {
    for (std::string& one : overrides)
      one = with_folder(one);
    return launch::plan_json(load(base, overrides));
  }
  static void expect_holds(const std::string& plan, const std::string& part) {
    EXPECT_NE(plan.find(part), std::string::npos) << plan << "\nlacks: " << part;
  }
};

// The only link of a plan, in bytes: of a step, and held for steps ahead.
std::string link(int step, int ahead) {
  return R"("links": [{"teacher": "reference", "bytes_per_target_token": 4, )"
         R"("max_bytes_per_step": )" +
         std::to_string(step) + R"(, "max_prefetch_bytes_per_rank": )" + std::to_string(ahead) +
         "}]";
}

// Steps of 2 rows of 16 tokens, each also with a mismatched completion; 2 steps are prefetched
// beside the one that is computed.
TEST_F(Plan, KtosReferenceAnswersForBothKindsOfCompletions) {
  const int both = 4 * 2 * (2 * 16);
  const std::string plan = of(kKtoBase);
  expect_holds(plan, link(both, 3 * both));
  expect_holds(plan, R"("max_tokens_per_step": 32)");
  expect_holds(of(kKtoBase, {"kto.prefetch=5"}), link(both, 6 * both));
  expect_holds(of(kKtoBase, {"roles.student.world.dp=2"}), link(2 * both, 3 * both));
  expect_holds(of(kKtoBase, {"kto.loss_type=apo_zero_unpaired"}), link(both / 2, 3 * both / 2));
}

// The reference's model has between 2 and 3 times the student's parameters. Per parameter and token
// the student computes 6 FLOP and the reference 2; with mismatched completions 8 and 4.
TEST_F(Plan, KtosMismatchedCompletionsCount) {
  const std::string large = "roles.reference.model=FOLDER/teacher";
  expect_holds(of(kKtoBase, {large}), R"("expected_bottleneck": "reference")");
  expect_holds(of(kKtoBase, {large, "kto.loss_type=apo_zero_unpaired"}),
               R"("expected_bottleneck": "student")");
}

// Steps of 2 pairs of two completions of 16 tokens; 2 steps are prefetched by default.
TEST_F(Plan, DposReferenceAnswersForBothCompletions) {
  const int both = 4 * 2 * (2 * 16);
  expect_holds(of(kDpoBase), link(both, 3 * both));
  expect_holds(of(kDpoBase, {"dpo.prefetch=1"}), link(both, 2 * both));
}

// Steps of 2 completions; without beta nothing is compared and no link is there.
TEST_F(Plan, GrposReferenceAnswersOnceForARound) {
  const int step = 4 * 2 * 16;
  expect_holds(of(kGrpoBase, {"roles.reference.model=FOLDER/student", "grpo.beta=0.1"}),
               link(step, step));
  expect_holds(of(kGrpoBase), R"("links": [])");
}

// The run's folder is every host's, the rest belongs to those who read it.
TEST_F(Plan, NamesThePathsThatHostsMustSee) {
  const auto plan = nlohmann::json::parse(
      of(kDpoBase, {"roles.student.world.dp=2", "launch.backend=ssh",
                    "launch.hosts=[{host: h1, slots: 1}, {host: h2, slots: 1}, {host: h3}]"}));
  std::map<std::string, std::vector<std::string>> hosts;
  for (const auto& path : plan.at("paths"))
    hosts[path.at("key")] = path.at("hosts").get<std::vector<std::string>>();

  using Hosts = std::vector<std::string>;
  EXPECT_EQ(hosts.at("output_dir"), (Hosts{"h1", "h2", "h3"}));
  EXPECT_EQ(hosts.at("roles.student.model"), (Hosts{"h1", "h2"}));
  EXPECT_EQ(hosts.at("data.train"), (Hosts{"h1", "h2"}));
  EXPECT_EQ(hosts.at("roles.reference.model"), (Hosts{"h3"}));
}

// The bytes of a transfer; -1 if the plan has none.
double transfer(const std::string& plan, const std::string& what, const char* key = "bytes") {
  const auto json = nlohmann::json::parse(plan);
  for (const auto& one : json.at("transfers"))
    if (one.at("what") == what) return one.at(key);
  return -1;
}

TEST_F(Plan, TransfersFollowFromTheirFormulas) {
  const std::string alone = of(kDpoBase);
  EXPECT_EQ(transfer(alone, "payload reference -> student"), 4 * 2 * (2 * 16));
  EXPECT_EQ(transfer(alone, "gradients of student"), -1);
  EXPECT_DOUBLE_EQ(transfer(alone, "payload reference -> student", "seconds"),
                   4 * 2 * (2 * 16) * 8 / 10e9);

  // A ring over three replicas; with a sharded optimizer the weights come back besides.
  const auto gradients = [&](const char* more) {
    const std::string plan = of(kDpoBase, {"roles.student.world.dp=3", more});
    const auto student = nlohmann::json::parse(plan).at("roles").at(0);
    return std::tuple<double, double, double>(transfer(plan, "gradients of student"),
                                              student.at("gradient_bytes_per_rank"),
                                              student.at("weight_bytes_per_rank"));
  };
  const auto [ring, sums, weights] = gradients("roles.student.world.tp=1");
  EXPECT_NEAR(ring, 2 * 2.0 / 3 * sums, 1e-6 * ring);
  const auto [sharded, shard_sums, all] =
      gradients("roles.student.world.distributed_optimizer=true");
  EXPECT_NEAR(sharded, 2.0 / 3 * (shard_sums + all), 1e-6 * sharded);
}

// Whoever has the weights of a push sends them to two at most.
TEST_F(Plan, APushIsTheModelOnceOrTwice) {
  const std::string what = "push student -> generator";
  const std::string one = of(kGrpoBase);
  const double weights = nlohmann::json::parse(one).at("roles").at(0).at("parameters");
  EXPECT_EQ(transfer(one, what), 4 * weights);
  EXPECT_EQ(transfer(of(kGrpoBase, {"roles.generator.world.dp=5"}), what), 2 * 4 * weights);
  EXPECT_EQ(
      transfer(of(kGrpoBase, {"roles.generator.dtype=bfloat16", "roles.student.dtype=bfloat16"}),
               what),
      2 * weights);
}

// The number of a role's entry that stands behind `key`.
int64_t of_role(const std::string& role, const std::string& plan, const std::string& key) {
  const std::string name = '"' + key + "\": ";
  const size_t entry = plan.find(R"("role": ")" + role + '"');
  const size_t at = plan.find(name, entry);
  return at == std::string::npos ? -1 : std::stoll(plan.substr(at + name.size()));
}

// What is pushed are whole weights, also where an adapter is trained, unless that goes alone.
TEST_F(Plan, APushOfAnAdapterIsThatOfTheModelOrOfTheFactors) {
  const std::string what = "push student -> generator";
  const double whole = transfer(of(kGrpoBase), what);
  ASSERT_GT(whole, 0);
  EXPECT_EQ(transfer(of(kGrpoBase, {"roles.student.lora={r: 4}"}), what), whole);
  EXPECT_EQ(transfer(of(kGrpoBase, {"roles.student.lora={r: 8, target_modules: q_proj}"}), what),
            whole);

  // r (in + out) numbers for each adapted matrix: twice the rank, twice the bytes.
  const std::string alone = of(kGrpoBase, {"roles.student.lora={r: 4, push: adapter}"});
  const double factors = transfer(alone, what);
  const auto student = models::read_model_config((folder_ / "student").string());
  const int64_t q = student.num_attention_heads * student.head_dim,
                kv = student.num_key_value_heads * student.head_dim;
  const int64_t in_and_out = 2 * (student.hidden_size + q) + 2 * (student.hidden_size + kv) +
                             3 * (student.hidden_size + student.intermediate_size);
  EXPECT_EQ(factors, static_cast<double>(4 * 4 * in_and_out * student.num_hidden_layers));
  EXPECT_EQ(transfer(of(kGrpoBase, {"roles.student.lora={r: 8, push: adapter}"}), what),
            2 * factors);

  // One factor of each matrix is whole on every rank: A of q_proj, as long as the hidden size.
  const std::vector<std::string> query{
      "roles.student.lora={r: 4, push: adapter, target_modules: q_proj}"};
  std::vector<std::string> ranks = query;
  ranks.emplace_back("roles.generator.world.tp=2");
  EXPECT_EQ(transfer(of(kGrpoBase, ranks), what) - transfer(of(kGrpoBase, query), what),
            static_cast<double>(4 * 4 * student.hidden_size * student.num_hidden_layers));

  // The generator has the factors beside the model, once more while they arrive, and what they
  // change once more; the student forms no merged weights, and keeps the factors for a generator
  // that comes back.
  const std::string key = "pushed_weights_bytes_per_rank";
  const int64_t matrices = student.hidden_size * (2 * q + 2 * kv + 3 * student.intermediate_size);
  EXPECT_EQ(static_cast<double>(of_role("generator", alone, key)),
            factors + static_cast<double>(4 * matrices * student.num_hidden_layers));
  EXPECT_EQ(static_cast<double>(of_role("student", alone, key)), factors);
  EXPECT_EQ(static_cast<double>(of_role("generator", alone, "weight_bytes_per_rank")),
            whole + factors);
}

int64_t of_student(const std::string& plan, const std::string& key) {
  return of_role("student", plan, key);
}

// One more copy of the weights, as long as a generator may come back without them.
TEST_F(Plan, TheKeptPushCountsWhileTheGeneratorMayBeStartedAgain) {
  const std::string with = of(kGrpoBase, {"roles.generator.restarts=1"});
  const std::string without = of(kGrpoBase, {"roles.generator.restarts=0"});
  const char* pushed = "pushed_weights_bytes_per_rank";
  const char* peak = "peak_bytes_per_rank";
  const int64_t weights = of_student(with, "weight_bytes_per_rank");
  ASSERT_GT(weights, 0);
  EXPECT_EQ(of_student(with, pushed), weights);
  EXPECT_EQ(of_student(without, pushed), 0);
  EXPECT_EQ(of_student(with, peak) - of_student(without, peak), weights);
}

// It draws on with the old weights while the new ones arrive.
TEST_F(Plan, AGeneratorHoldsTwoSetsOfWeightsAndItsCache) {
  const std::string plan = of(kGrpoBase, {"generation.kv_cache=64MiB"});
  const int64_t weights = of_role("generator", plan, "weight_bytes_per_rank");
  ASSERT_GT(weights, 0);
  EXPECT_EQ(of_role("generator", plan, "kv_cache_bytes_per_rank"), int64_t{64} << 20);
  EXPECT_EQ(of_role("generator", plan, "peak_bytes_per_rank"), 2 * weights + (int64_t{64} << 20));
}

// A head of 100 rows of 96 numbers, and what is in flight for the steps ahead.
TEST_F(Plan, TheStudentHoldsTeachersHeadsAndAnswers) {
  const char* answers = "answer_bytes_per_rank";
  const auto student = [&](std::vector<std::string> overrides) {
    return of_student(of(kDistillBase, std::move(overrides)), answers);
  };
  const int64_t rows = 2 * 16 * 4;  // of a step and the three that are prefetched
  EXPECT_EQ(student({"distill.prefetch=3"}), 4 * 100 * 96 + rows * 4 * 96);
  EXPECT_EQ(student({"distill.prefetch=3", "roles.teacher.dtype=bfloat16"}),
            2 * 100 * 96 + rows * 2 * 96);
  EXPECT_EQ(student({"distill.prefetch=3", "distill.payload=full"}), rows * 4 * 100);
  EXPECT_EQ(student({"distill.prefetch=3", "roles.student.world.tp=2"}),
            4 * 50 * 96 + rows * 4 * 96);
}

// Where the vocabulary is split each of two teachers forms a gradient of the head: one more of
// 50 x 48 in float32 and of the rows. Elsewhere one pass serves both, with a larger chunk.
TEST_F(Plan, TeachersOfASplitVocabularyFormAGradientEach) {
  const auto more = [&](const char* tp) {
    const std::string full = "distill.payload=full";
    const std::string two = "distill.teachers=[{role: teacher}, {role: teacher, when: {a: b}}]";
    const std::string with_one = of(kDistillBase, {full, tp}),
                      with_two = of(kDistillBase, {full, two, tp});
    const auto of_both = [&](const char* key) {
      return of_student(with_two, key) - of_student(with_one, key);
    };
    return of_both("peak_bytes_per_rank") - of_both("answer_bytes_per_rank");
  };
  EXPECT_GE(more("roles.student.world.tp=2"), 4 * (50 + 32) * 48);
  EXPECT_EQ(more("roles.student.world.tp=1"), 0) << "both chunks are as large as all rows";
}

// 2 bytes instead of 4 of the weights, 12 instead of 8 beside them; more of a norm.
TEST_F(Plan, Bfloat16IsNotHalf) {
  const std::string wide = of(kSftBase), half = of(kSftBase, {"roles.student.dtype=bfloat16"});
  const int64_t parameters = of_student(wide, "parameters");
  EXPECT_EQ(of_student(half, "weight_bytes_per_rank"), 2 * parameters);
  EXPECT_EQ(of_student(half, "optimizer_bytes_per_rank"), 12 * parameters);
  const char* kept = "activation_bytes_per_rank";
  EXPECT_GT(of_student(half, kept), of_student(wide, kept) * 6 / 10);
}

TEST_F(Plan, DevicesAreNotMeasured) {
  expect_holds(of(kSftBase), R"("measured": true)");
  const std::string plan =
      launch::plan_json(load(kSftBase, {"roles.student.world.device=cuda"}, {.cuda = true}));
  expect_holds(plan, R"("measured": false)");
  EXPECT_GT(of_student(plan, "activation_bytes_per_rank"),
            of_student(of(kSftBase), "activation_bytes_per_rank"));
}

// The driver, cuBLAS and NCCL take memory of a device beside tensors, of which the peak is.
TEST_F(Plan, ADeviceHoldsMoreThanTensors) {
  const auto planned = [&](std::vector<std::string> overrides) {
    return nlohmann::json::parse(launch::plan_json(load(kDistillBase, overrides, {.cuda = true})));
  };
  const auto bytes = [](const nlohmann::json& plan, const char* key) {
    std::map<std::string, int64_t> of;
    for (const auto& role : plan.at("roles"))
      of[role.at("role")] = role.at(key);
    return of;
  };
  const char* beside = "beside_tensors_bytes_per_rank";
  const std::string student = "roles.student.world.device=cuda";
  const std::string teacher = "roles.teacher.world.device=cuda";
  EXPECT_EQ(bytes(planned({}), beside),
            (std::map<std::string, int64_t>{{"student", 0}, {"teacher", 0}}));
  const nlohmann::json one = planned({student});
  EXPECT_EQ(bytes(one, beside).at("student"), int64_t{819} << 20);
  EXPECT_EQ(bytes(one, beside).at("teacher"), 0);
  EXPECT_TRUE(one.at("shared_devices").empty());

  // Without names they share a device only where the host has no other; with names that one.
  const nlohmann::json both = planned({student, teacher});
  auto peaks = bytes(both, "peak_bytes_per_rank");
  const int64_t together = peaks.at("student") + peaks.at("teacher") + 2 * (int64_t{819} << 20);
  ASSERT_EQ(both.at("shared_devices").size(), 1u);
  EXPECT_FALSE(both.at("shared_devices").at(0).contains("device"));
  EXPECT_EQ(both.at("shared_devices").at(0).at("bytes"), together);
  EXPECT_EQ(both.at("shared_devices").at(0).at("roles").size(), 2u);

  const nlohmann::json named =
      planned({student, teacher, "roles.student.devices=[3]", "roles.teacher.devices=[3]"});
  ASSERT_EQ(named.at("shared_devices").size(), 2u);
  EXPECT_EQ(named.at("shared_devices").at(0).at("device"), 3);
  EXPECT_EQ(named.at("shared_devices").at(0).at("bytes"), together);
}

// Two ranks of a role need a device each, so that not all of a host fit on one.
TEST_F(Plan, RanksOfOneRoleDoNotShareADevice) {
  const nlohmann::json plan = nlohmann::json::parse(launch::plan_json(load(
      kDistillBase,
      {"roles.student.world.device=cuda", "roles.teacher.world.device=cuda",
       "roles.student.world.dp=2", "roles.student.devices=[0, 1]", "roles.teacher.devices=[1]"},
      {.cuda = true})));
  ASSERT_EQ(plan.at("shared_devices").size(), 1u);
  EXPECT_EQ(plan.at("shared_devices").at(0).at("device"), 1);
  EXPECT_EQ(plan.at("shared_devices").at(0).at("roles").get<std::vector<std::string>>(),
            (std::vector<std::string>{"student", "teacher"}));
}

// Beside its weights a teacher holds at least the distributions that it answers with, and in
// bfloat16 its head once more.
TEST_F(Plan, ATeacherHoldsWhatItAnswersWith) {
  const auto beside = [&](std::vector<std::string> overrides) {
    const std::string plan = of(kDistillBase, std::move(overrides));
    return of_role("teacher", plan, "peak_bytes_per_rank") -
           of_role("teacher", plan, "weight_bytes_per_rank");
  };
  EXPECT_GE(beside({"distill.payload=full"}), 2 * 16 * 4 * 100);
  EXPECT_GE(beside({"distill.payload=full", "roles.teacher.dtype=bfloat16"}), 4 * 100 * 96);
}

// Steps of 2 x 16 rows of 96 numbers, of which this one and three more are under way.
TEST_F(Plan, ATeacherKeepsHiddenStatesUntilTheStudentNamesIds) {
  const auto kept = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"distill.payload=topk", "distill.prefetch=3"});
    return of_role("teacher", of(kDistillBase, more), "answer_bytes_per_rank");
  };
  const std::string student = "distill.support=student", both = "distill.support=union";
  const int64_t all = 4 * (2 * 16) * 96 * 4;
  EXPECT_EQ(kept({student}), all);
  EXPECT_EQ(kept({both}), all);
  EXPECT_EQ(kept({"distill.support=teacher"}), 0);
  EXPECT_EQ(kept({student, "roles.teacher.dtype=bfloat16"}), all / 2);
  EXPECT_EQ(kept({student, "roles.student.world.dp=2"}), 2 * all);
  EXPECT_EQ(kept({student, "train.gradient_accumulation_steps=2"}), 2 * all);
  EXPECT_EQ(kept({student, "roles.teacher.world.dp=3"}), all / 2) << "two requests of four";
  EXPECT_EQ(kept({student, "train.per_device_train_batch_size=100000"}), int64_t{1} << 30);
  const std::string on_policy =
      of(kOnPolicyBase, {"distill.payload=topk", "distill.support=student"});
  EXPECT_EQ(of_role("teacher", on_policy, "answer_bytes_per_rank"), all / 4);
}

TEST_F(Plan, WhatATeacherKeepsIsInItsPeak) {
  const auto peak = [&](const char* support, const char* prefetch) {
    return of_role(
        "teacher",
        of(kDistillBase, {"distill.payload=topk", "distill.loss_top_k=8", support, prefetch}),
        "peak_bytes_per_rank");
  };
  const char* student = "distill.support=student";
  EXPECT_EQ(peak(student, "distill.prefetch=5") - peak(student, "distill.prefetch=3"),
            2 * (2 * 16) * 96 * 4);
  const char* teacher = "distill.support=teacher";
  EXPECT_EQ(peak(teacher, "distill.prefetch=5"), peak(teacher, "distill.prefetch=3"));
}

// 8 ids of 4 bytes a row from each tp rank. The student holds them beside their log-probabilities
// and the rest's, and finds them with two chunks of logits beside the first, here all 32 x 100.
TEST_F(Plan, AStudentNamesIdsFromEachOfItsRanks) {
  const auto plan = [&](const char* support, const char* tp) {
    return of(kDistillBase, {"distill.payload=topk", "distill.loss_top_k=8", support, tp});
  };
  const char *student = "distill.support=student", *one = "roles.student.world.tp=1",
             *two = "roles.student.world.tp=2";
  expect_holds(plan(student, one), R"("named_bytes_per_target_token": 32)");
  expect_holds(plan(student, two), R"("named_bytes_per_target_token": 64)");
  EXPECT_EQ(transfer(plan(student, one), "ids student -> teacher"), 32 * (2 * 16));
  EXPECT_EQ(transfer(plan(student, two), "ids student -> teacher"), 64 * (2 * 16));
  EXPECT_EQ(transfer(plan("distill.support=teacher", one), "ids student -> teacher"), -1);
  EXPECT_EQ(of_student(plan(student, two), "answer_bytes_per_rank"), (32 + 4 + 32) * (2 * 16));
  EXPECT_EQ(of_student(plan("distill.support=union", one), "answer_bytes_per_rank"),
            (2 * 64 + 4 + 32) * (2 * 16));
}

// A head of two rows, and a forward pass of one completion; no cache.
TEST_F(Plan, ARewardModelHoldsItsWeightsAndAForwardPass) {
  const auto plan = [&](const char* length) {
    return of(kGrpoBase, {"roles.judge={model: FOLDER/scorer}",
                          "rewards=[{type: model, role: judge}]", length});
  };
  const std::string shorter = plan("data.max_length=16"), longer = plan("data.max_length=64");
  const auto beside = [&](const std::string& of_plan) {
    return of_role("judge", of_plan, "peak_bytes_per_rank") -
           of_role("judge", of_plan, "weight_bytes_per_rank");
  };
  EXPECT_EQ(of_role("judge", shorter, "weight_bytes_per_rank"),
            4 * (of_student(shorter, "parameters") - 98 * 48));
  EXPECT_EQ(of_role("judge", shorter, "kv_cache_bytes_per_rank"), 0);
  EXPECT_GE(beside(shorter), 4 * 16 * (8 * 48 + 3 * 64));
  EXPECT_EQ(beside(longer), 4 * beside(shorter));
}

TEST_F(Plan, AJudgeHoldsItsWeightsAndItsCache) {
  const std::string plan =
      of(kGrpoBase, {"roles.judge={model: FOLDER/student}", "generation.kv_cache=64MiB",
                     "rewards=[{type: judge, role: judge, template: FOLDER/train.jsonl, "
                     "pattern: '(4)'}]"});
  const int64_t weights = of_role("judge", plan, "weight_bytes_per_rank");
  EXPECT_EQ(weights, 4 * of_student(plan, "parameters"));
  EXPECT_EQ(of_role("judge", plan, "kv_cache_bytes_per_rank"), int64_t{64} << 20);
  EXPECT_EQ(of_role("judge", plan, "peak_bytes_per_rank"), weights + (int64_t{64} << 20));
}

// A head of one row in the place of 100.
TEST_F(Plan, ARewardModelThatTrainsHasASmallHead) {
  const std::string plan = of(kRewardModelBase);
  EXPECT_EQ(of_student(of(kSftBase), "parameters") - of_student(plan, "parameters"), 99 * 48);
  expect_holds(plan, R"("links": [])");
  expect_holds(plan, R"("max_tokens_per_step": 64)");
}

}  // namespace
}  // namespace retort::test
