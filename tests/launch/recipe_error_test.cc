// Every complaint about a recipe: place, what, what was expected, nearest known name.
#include <fstream>

#include "tests/launch/recipe_fixture.h"

namespace retort::test {
namespace {

struct Case {
  const char* name;
  const std::string* base;
  std::string from, to;  // one replacement in the base recipe
  std::vector<std::string> overrides;
  std::vector<std::string> expected;  // the message starts with the first and contains the others
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class RecipeErrorTest : public RecipeTest, public ::testing::WithParamInterface<Case> {};

TEST_P(RecipeErrorTest, NamesThePlaceAndTheRemedy) {
  const Case& c = GetParam();
  const std::string text = c.from.empty() ? *c.base : replaced(*c.base, c.from, c.to);
  const std::string message = error_of(text, c.overrides);
  ASSERT_FALSE(c.expected.empty());
  EXPECT_EQ(message.rfind(c.expected[0], 0), 0u) << message;
  for (const auto& part : c.expected) EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
}

const Case kSyntax[] = {
    {"UnknownTopLevelKey", &kSft, "train:\n", "trian:\n", {}, {"r.yaml:8: trian: unknown key", "did you mean 'train'?"}},
    {"UnknownNestedKey",
     &kSft,
     "max_steps",
     "max_step",
     {},
     {"r.yaml:9: train.max_step: unknown key", "did you mean 'max_steps'?"}},
    {"UnknownKeyInList",
     &kSft,
     "{path: FOLDER/train.jsonl}",
     "{path: FOLDER/train.jsonl, colums: {a: b}}",
     {},
     {"r.yaml:7: data.train[0].colums: unknown key", "did you mean 'columns'?"}},
    {"UnknownKeyFarFromAll",
     &kSft,
     "max_steps: 10",
     "zzzzzzz: 10",
     {},
     {"r.yaml:9: train.zzzzzzz: unknown key (known here: max_steps"}},
    {"TextForInteger", &kSft, "10", "ten", {}, {"r.yaml:9: train.max_steps: expected an integer, got 'ten'"}},
    {"QuotedTextForInteger", &kSft, "10", "\"10\"", {}, {"r.yaml:9: train.max_steps: expected an integer, got the text \"10\""}},
    {"FractionForInteger", &kSft, "10", "1.5", {}, {"r.yaml:9: train.max_steps: expected an integer, got '1.5'"}},
    {"IntegerTooLarge", &kSft, "10", "99999999999999999999", {}, {"r.yaml:9: train.max_steps: expected an integer"}},
    {"ListForInteger", &kSft, "10", "[10]", {}, {"r.yaml:9: train.max_steps: expected an integer, got a list"}},
    {"YesForBoolean",
     &kSft,
     "train: [",
     "packing: yes\n  train: [",
     {},
     {"r.yaml:7: data.packing: expected true or false, got 'yes'"}},
    {"TextForNumber",
     &kSft,
     "max_steps: 10",
     "learning_rate: fast",
     {},
     {"r.yaml:9: train.learning_rate: expected a number, got 'fast'"}},
    {"NotANumber", &kSft, "max_steps: 10", "learning_rate: nan", {}, {"r.yaml:9: train.learning_rate: expected a number"}},
    {"ValueForBlock", &kSft, "train:\n  max_steps: 10", "train: 10", {}, {"r.yaml:8: train: expected a block of keys, got '10'"}},
    {"EmptyBlock", &kSft, "train:\n  max_steps: 10", "train:", {}, {"r.yaml:8: train: expected a block of keys, got nothing"}},
    {"BlockForList",
     &kSft,
     "[{path: FOLDER/train.jsonl}]",
     "{path: x}",
     {},
     {"r.yaml:7: data.train: expected a list, got a block"}},
    {"DurationWithoutUnit",
     &kSft,
     "data:",
     "launch: {collective_timeout: 120}\ndata:",
     {},
     {"r.yaml:6: launch.collective_timeout: '120' is not a duration", "120s"}},
    {"SizeWithUnknownUnit",
     &kSft,
     "data:",
     "rpc: {max_inflight_bytes: 2GX}\ndata:",
     {},
     {"r.yaml:6: rpc.max_inflight_bytes: '2GX' is not a size", "2GiB"}},
    {"UnknownChoice",
     &kSft,
     "max_steps: 10",
     "lr_scheduler_type: cosin",
     {},
     {"r.yaml:9: train.lr_scheduler_type: 'cosin' is not one of constant | linear | cosine", "did you mean 'cosine'?"}},
    {"UnknownRecipe",
     &kSft,
     "sft",
     "distil",
     {},
     {"r.yaml:1: recipe: 'distil' is not one of sft | dpo | distill | rejection_sampling | on_policy_distill | grpo; did you "
      "mean 'distill'?"}},
    {"KeyTwice",
     &kSft,
     "  max_steps: 10",
     "  max_steps: 10\n  max_steps: 20",
     {},
     {"r.yaml:10: 'max_steps' stands here twice; first in line 9"}},
    {"BlockTwice", &kSft, "roles:", "data: {}\nroles:", {}, {"r.yaml:7: 'data' stands here twice; first in line 3"}},
    {"BrokenSyntax", &kSft, "max_steps: 10", "max_steps: [10", {}, {"r.yaml:", "not valid YAML"}},
    {"TabIndentation", &kSft, "  max_steps", "\tmax_steps", {}, {"r.yaml:", "not valid YAML"}},
    {"TwoDocuments", &kSft, "train:\n", "---\ntrain:\n", {}, {"r.yaml:", "a second YAML document"}},
    {"UndefinedVariable",
     &kSft,
     "FOLDER/student",
     "${RETORT_TEST_UNDEFINED}/student",
     {},
     {"r.yaml:5: the environment variable 'RETORT_TEST_UNDEFINED' is not set"}},
    {"UnclosedVariable", &kSft, "FOLDER/student", "${HOME/student", {}, {"r.yaml:5: '${HOME/student': ${ without }"}},
};
INSTANTIATE_TEST_SUITE_P(Syntax, RecipeErrorTest, ::testing::ValuesIn(kSyntax),
                         [](const auto& i) { return std::string(i.param.name); });

const Case kOverrides[] = {
    {"NoEquals", &kSft, "", "", {"train.max_steps"}, {"command line: 'train.max_steps' is not key.path=value"}},
    {"EmptyKey", &kSft, "", "", {"train..max_steps=3"}, {"command line: 'train..max_steps=3' has an empty key"}},
    {"UnknownKey",
     &kSft,
     "",
     "",
     {"train.max_setps=3"},
     {"command line: train.max_setps: unknown key", "did you mean 'max_steps'?"}},
    {"WrongType", &kSft, "", "", {"train.max_steps=many"}, {"command line: train.max_steps: expected an integer, got 'many'"}},
    {"BelowAValue", &kSft, "", "", {"output_dir.x=3"}, {"command line: output_dir is the value 'run', it has no key 'x'"}},
    {"PastTheEndOfAList",
     &kSft,
     "",
     "",
     {"data.train.1.path=x"},
     {"command line: '1' is not an item of the list data.train, which has 1"}},
    {"BrokenValue", &kSft, "", "", {"train.max_steps=[1"}, {"command line: not valid YAML"}},
    {"Contradiction",
     &kSft,
     "",
     "",
     {"train.num_train_epochs=1"},
     {"r.yaml:9: train: max_steps and num_train_epochs exclude each other"}},
};
INSTANTIATE_TEST_SUITE_P(Overrides, RecipeErrorTest, ::testing::ValuesIn(kOverrides),
                         [](const auto& i) { return std::string(i.param.name); });

const Case kMissing[] = {
    {"Recipe", &kSft, "recipe: sft\n", "", {}, {"r.yaml:1: `recipe` is missing", "sft | dpo | distill"}},
    {"OutputDir", &kSft, "output_dir: run\n", "", {}, {"r.yaml:1: `output_dir` is missing"}},
    {"Student", &kSft, "student:", "studnet:", {}, {"r.yaml:3: roles: `student` is missing", "did you mean 'studnet'?"}},
    {"Model", &kSft, "model: FOLDER/student", "dtype: float32", {}, {"r.yaml:4: roles.student: `model` is missing"}},
    {"ModelFolder", &kSft, "FOLDER/student", "FOLDER/nowhere", {}, {"r.yaml:5: roles.student.model: 'nowhere' is not a folder"}},
    {"ModelConfig", &kSft, "FOLDER/student", "FOLDER/empty", {}, {"r.yaml:5: roles.student.model: 'empty' has no config.json"}},
    {"TrainingData",
     &kSft,
     "train: [{path: FOLDER/train.jsonl}]",
     "packing: true",
     {},
     {"r.yaml:6: data.train: no training data"}},
    {"DataFile",
     &kSft,
     "FOLDER/train.jsonl",
     "FOLDER/train.json",
     {},
     {"r.yaml:7: data.train.0.path: 'train.json' is not a file"}},
    {"Teachers", &kDistill, "distill:\n  teachers: [{role: teacher}]\n", "", {}, {"r.yaml:1: `distill` is missing"}},
    {"TeacherRole",
     &kDistill,
     "{role: teacher}",
     "{weight: 1.0}",
     {},
     {"r.yaml:14: distill: teachers: every entry needs a `role`"}},
    {"DeclaredRole",
     &kDistill,
     "{role: teacher}",
     "{role: techer}",
     {},
     {"r.yaml:6: roles.teacher: no part of this recipe uses the role"}},
    {"NoTeacherAtAll", &kDistill, "[{role: teacher}]", "[]", {}, {"r.yaml:14: distill: teachers must name at least one role"}},
};
INSTANTIATE_TEST_SUITE_P(Missing, RecipeErrorTest, ::testing::ValuesIn(kMissing),
                         [](const auto& i) { return std::string(i.param.name); });

const Case kContradictions[] = {
    {"StepsAndEpochs",
     &kSft,
     "max_steps: 10",
     "max_steps: 10\n  num_train_epochs: 1",
     {},
     {"r.yaml:9: train: max_steps and num_train_epochs exclude each other"}},
    {"RowsAndTokens",
     &kSft,
     "max_steps: 10",
     "per_device_train_batch_size: 4\n  tokens_per_batch: 4096",
     {},
     {"r.yaml:9: train: per_device_train_batch_size and tokens_per_batch exclude each other"}},
    {"Warmups",
     &kSft,
     "max_steps: 10",
     "warmup_steps: 4\n  warmup_ratio: 0.1",
     {},
     {"r.yaml:9: train: warmup_steps and warmup_ratio"}},
    {"NoSteps", &kSft, "10", "0", {}, {"r.yaml:9: train: max_steps must be at least 1, got 0"}},
    {"TokensBelowARow",
     &kSft,
     "max_steps: 10",
     "tokens_per_batch: 100",
     {},
     {"r.yaml:9: train.tokens_per_batch: smaller than one row"}},
    {"EvalStepsWithoutEval",
     &kSft,
     "max_steps: 10",
     "eval_steps: 5",
     {},
     {"r.yaml:9: train.eval_steps: has no effect without data.eval"}},
    {"MinLrWithConstant",
     &kSft,
     "max_steps: 10",
     "lr_scheduler_type: constant\n  min_lr: 1.0e-5",
     {},
     {"r.yaml:10: train: min_lr has no effect"}},
    {"AsyncSaveAtTheEndOnly",
     &kSft,
     "max_steps: 10",
     "save_steps: 0\n  async_save: true",
     {},
     {"r.yaml:10: train: async_save has no effect"}},
    {"DistillBlockInSft",
     &kSft,
     "data:",
     "distill: {teachers: [{role: student}]}\ndata:",
     {},
     {"r.yaml:6: distill: this block belongs to recipe: distill"}},
    {"UnusedRole",
     &kSft,
     "data:",
     "  teacher: {model: FOLDER/teacher}\ndata:",
     {},
     {"r.yaml:6: roles.teacher: no part of this recipe uses the role"}},
    {"StudentAsTeacher",
     &kDistill,
     "[{role: teacher}]",
     "[{role: teacher, weight: 0.5}, {role: student, weight: 0.5}]",
     {},
     {"r.yaml:14: distill.teachers.1.role: the student cannot be its own teacher"}},
    {"UndeclaredTeacher",
     &kDistill,
     "[{role: teacher}]",
     "[{role: teacher, weight: 0.5}, {role: techer, weight: 0.5}]",
     {},
     {"r.yaml:14: distill.teachers.1.role: 'techer' is not declared under roles; did you mean 'teacher'?"}},
    {"WeightsDoNotSumToOne",
     &kDistill,
     "{role: teacher}",
     "{role: teacher, weight: 0.7}",
     {},
     {"r.yaml:14: distill: teachers: the weights must sum to 1"}},
    {"SameTeacherTwice",
     &kDistill,
     "[{role: teacher}]",
     "[{role: teacher, weight: 0.5}, {role: teacher, weight: 0.5}]",
     {},
     {"r.yaml:14: distill: teachers: 'teacher' stands there twice"}},
    {"RenormalizeWithReverseKl",
     &kDistill,
     "distill:",
     "distill:\n  payload: topk\n  tail: renormalize\n  loss_type: reverse_kl",
     {},
     {"r.yaml:15: distill: tail: renormalize works with loss_type: forward_kl only"}},
    {"DropWithJsd",
     &kDistill,
     "distill:",
     "distill:\n  payload: topk\n  tail: drop\n  loss_type: jsd",
     {},
     {"r.yaml:15: distill: tail: drop works with loss_type: forward_kl only"}},
    {"TopKWithoutTopK",
     &kDistill,
     "distill:",
     "distill:\n  loss_top_k: 32",
     {},
     {"r.yaml:14: distill: loss_top_k has no effect without payload: topk"}},
    {"TailWithoutTopK",
     &kDistill,
     "distill:",
     "distill:\n  tail: drop",
     {},
     {"r.yaml:14: distill: tail has no effect without payload: topk"}},
    {"TopKOfZero",
     &kDistill,
     "distill:",
     "distill:\n  payload: topk\n  loss_top_k: 0",
     {},
     {"r.yaml:15: distill: loss_top_k must be at least 1"}},
    {"BetaWithoutJsd",
     &kDistill,
     "distill:",
     "distill:\n  beta: 0.7",
     {},
     {"r.yaml:14: distill: beta has no effect without loss_type: jsd"}},
    {"SkewWithoutSkewed",
     &kDistill,
     "distill:",
     "distill:\n  skew_lambda: 0.3",
     {},
     {"r.yaml:14: distill: skew_lambda has no effect without"}},
    {"PayloadTypeWithHidden",
     &kDistill,
     "distill:",
     "distill:\n  payload_dtype: bfloat16",
     {},
     {"r.yaml:14: distill: payload_dtype has no effect"}},
    {"KdRatioRange", &kDistill, "distill:", "distill:\n  kd_ratio: 1.5", {}, {"r.yaml:14: distill: kd_ratio must be in [0, 1]"}},
    {"TemperatureRange",
     &kDistill,
     "distill:",
     "distill:\n  temperature: 0",
     {},
     {"r.yaml:14: distill: temperature must be a finite number above 0"}},
    {"BatchingOnTheStudent",
     &kSft,
     "data:",
     "    batching: dynamic\ndata:",
     {},
     {"r.yaml:6: roles.student.batching: has no effect on the driving role"}},
    {"DpoWithoutBlock", &kSft, "sft", "dpo", {}, {"r.yaml:1: `dpo` is missing; recipe: dpo needs at least dpo:"}},
    {"DpoBlock", &kSft, "data:", "dpo: {beta: 0.1}\ndata:", {}, {"r.yaml:6: dpo: this block belongs to recipe: dpo"}},
    {"GenerationBlock",
     &kSft,
     "data:",
     "generation: {role: g}\ndata:",
     {},
     {"r.yaml:6: generation: this recipe draws no samples"}},
    {"OnPolicyWithoutGeneration",
     &kDistill,
     "distill:",
     "distill:\n  lmbda: 0.5",
     {},
     {"r.yaml:1: `generation` is missing; this recipe draws samples"}},
    {"SequenceParallelWithoutTp",
     &kDistill,
     "{dp: 2}",
     "{sequence_parallel: true}",
     {},
     {"r.yaml:8: roles.teacher.world: world.sequence_parallel has no effect with world.tp 1"}},
    {"VirtualPpWithoutPp",
     &kDistill,
     "{dp: 2}",
     "{virtual_pp: 2}",
     {},
     {"r.yaml:8: roles.teacher.world: world.virtual_pp has no effect with world.pp 1"}},
    {"DistributedOptimizerWithoutDp",
     &kDistill,
     "{dp: 2}",
     "{distributed_optimizer: true}",
     {},
     {"r.yaml:8: roles.teacher.world: world.distributed_optimizer has no effect with world.dp 1"}},
    {"RoleName", &kSft, "data:", "  the.role: {model: x}\ndata:", {}, {"r.yaml:6: roles.the.role: a role's name may hold"}},
};
INSTANTIATE_TEST_SUITE_P(Contradictions, RecipeErrorTest, ::testing::ValuesIn(kContradictions),
                         [](const auto& i) { return std::string(i.param.name); });

const Case kLater[] = {
    {"RewardModel", &kSft, "sft", "reward_model", {}, {"r.yaml:1: recipe: recipe: reward_model is not in this version"}},
    {"Sampled",
     &kDistill,
     "distill:",
     "distill:\n  payload: sampled",
     {},
     {"r.yaml:14: distill.payload: payload: sampled is not in this version"}},
    {"NumSamples",
     &kDistill,
     "distill:",
     "distill:\n  num_samples: 4",
     {},
     {"r.yaml:14: distill.num_samples: payload: sampled is not in this"}},
    {"Support",
     &kDistill,
     "distill:",
     "distill:\n  payload: topk\n  support: union",
     {},
     {"r.yaml:15: distill: support: union is not in this version"}},
    {"ExternalEngine",
     &kDistill,
     "    model: FOLDER/teacher",
     "    external: openai",
     {},
     {"r.yaml:7: roles.teacher.external: an external engine as a role is not"}},
    {"Slurm",
     &kSft,
     "data:",
     "launch: {backend: slurm}\ndata:",
     {},
     {"r.yaml:6: launch.backend: backend: slurm is not in this version"}},
};
INSTANTIATE_TEST_SUITE_P(Later, RecipeErrorTest, ::testing::ValuesIn(kLater),
                         [](const auto& i) { return std::string(i.param.name); });

const Case kWorlds[] = {
    {"NoRanks", &kDistill, "{dp: 2}", "{tp: 0}", {}, {"r.yaml:8: roles.teacher.world: world.tp is 0, expected a whole number"}},
    {"TooManyRanks",
     &kDistill,
     "{dp: 2}",
     "{tp: 2048, dp: 1024}",
     {},
     {"r.yaml:8: roles.teacher.world: world.tp * world.pp * world.dp is more than 1048576 ranks"}},
    {"DistributedOptimizerOnATeacher",
     &kDistill,
     "{dp: 2}",
     "{dp: 2, distributed_optimizer: true}",
     {},
     {"r.yaml:8: roles.teacher.world.distributed_optimizer: is for the role that trains; teacher serves"}},
    {"VirtualPpOnATeacher",
     &kDistill,
     "{dp: 2}",
     "{dp: 2, pp: 2, virtual_pp: 2}",
     {},
     {"r.yaml:8: roles.teacher.world.virtual_pp: is for the role that trains; teacher serves"}},
};
INSTANTIATE_TEST_SUITE_P(Worlds, RecipeErrorTest, ::testing::ValuesIn(kWorlds),
                         [](const auto& i) { return std::string(i.param.name); });

// A model of 6 heads, 3 key/value heads, 32 intermediate columns and 4 layers.
class LayoutOfAModelTest : public RecipeTest {
 protected:
  LayoutOfAModelTest() {
    std::ofstream(folder_ / "student" / "config.json")
        << R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 4,
               "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu",
               "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": false})";
  }
  std::string with_world(const std::string& world) const {
    return replaced(kSft, "FOLDER/student", "FOLDER/student\n    world: {" + world + "}");
  }
};

TEST_F(LayoutOfAModelTest, ThatDoesNotDivideItIsRefusedWithBothNumbers) {
  const std::string prefix = "r.yaml:6: roles.student.world: ";
  for (const auto& [world, message] : std::vector<std::pair<std::string, std::string>>{
           {"tp: 4", "world.tp 4 does not divide num_attention_heads 6 of the model"},
           {"tp: 12", "world.tp 12 does not divide num_attention_heads 6 of the model"},
           {"tp: 3", "world.tp 3 does not divide intermediate_size 32 of the model"},
           {"tp: 2", "world.tp 2 and num_key_value_heads 3 of the model: one must be a multiple of the other"},
           {"pp: 5", "world.pp 5 asks for more stages than the model has layers: 4"},
           {"pp: 2, virtual_pp: 3", "world.pp 2 times virtual_pp 3 asks for more stages than the model has layers: 4"}})
    EXPECT_EQ(error_of(with_world(world)), prefix + message);
}

TEST_F(LayoutOfAModelTest, ThatDividesItIsTaken) {
  for (const std::string world : {"pp: 3", "pp: 2, virtual_pp: 2", "pp: 4, dp: 2, distributed_optimizer: true", "dp: 3"})
    EXPECT_NO_THROW(load(with_world(world))) << world;
}

TEST_F(RecipeTest, CudaWithoutTheModuleIsUnavailable) {
  const std::string text = replaced(kDistill, "{dp: 2}", "{device: cuda}");
  try {
    load(text);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnavailable);
    EXPECT_NE(e.message().find("r.yaml:8: roles.teacher.world.device:"), std::string::npos) << e.message();
  }
  EXPECT_EQ(load(text, {}, {.cuda = true}).roles.at("teacher").world.device, parallel::Device::kCuda);
}

TEST_F(RecipeTest, VariablesOfARole) {
  const auto with = [](const std::string& env) {
    return replaced(kDistill, "world: {dp: 2}", "world: {dp: 2}\n    env: {" + env + "}");
  };
  EXPECT_EQ(load(with("GLOO_SOCKET_IFNAME: lo")).roles.at("teacher").env.at("GLOO_SOCKET_IFNAME"), "lo");
  for (const auto& [env, message] : std::vector<std::pair<std::string, std::string>>{
           {"OMP_NUM_THREADS: 2", "the launcher sets this variable itself; threads are roles.teacher.world.threads"},
           {"RETORT_RUN: x", "the launcher sets this variable itself; threads are roles.teacher.world.threads"},
           {"NCCL_DEBUG: INFO", "has no effect with world.device: cpu; remove it, or use device: cuda"},
           {"nccl: INFO", "the name of an environment variable has capital letters, digits and _"}})
    EXPECT_NE(error_of(with(env)).find(message), std::string::npos) << error_of(with(env));
  EXPECT_NO_THROW(
      load(replaced(kDistill, "world: {dp: 2}", "world: {device: cuda}\n    env: {NCCL_DEBUG: INFO, CUDA_VISIBLE_DEVICES: '1'}"),
           {}, {.cuda = true}));
}

TEST_F(RecipeTest, MissingFileAndFolderAreTheUsersInput) {
  for (const auto& path : {folder_ / "none.yaml", folder_}) {
    try {
      launch::load_recipe(path, {});
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(exit_code_for(e.code()), 2);
      EXPECT_NE(e.message().find(path.string()), std::string::npos);
    }
  }
}

TEST_F(RecipeTest, EmptyFileAndScalarFileAreRefused) {
  EXPECT_EQ(error_of("").rfind("r.yaml:1: expected a recipe", 0), 0u);
  EXPECT_EQ(error_of("hello").rfind("r.yaml:1: expected a recipe", 0), 0u);
}

TEST_F(RecipeTest, DeepNestingAndAliasBombsEnd) {
  std::string deep = "output_dir: ";
  for (int i = 0; i < 60; ++i) deep += "[";
  for (int i = 0; i < 60; ++i) deep += "]";
  EXPECT_NE(error_of(deep).find("nested deeper than"), std::string::npos);
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'i'; ++c) {
    const std::string last(1, static_cast<char>(c - 1));
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) bomb += (i ? ", *" : "*") + last;
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("more than 100000 values"), std::string::npos);
}

}  // namespace
}  // namespace retort::test
