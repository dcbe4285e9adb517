// Rows of the keys of `generation:`, `weight_sync:` and `rewards:`.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {
namespace {

using namespace observed;

std::vector<KeyRow> draw_rows() {
  return {
      refused(kSftBase, "generation={}", "this recipe draws no samples"),
      refused(kDistillBase, "generation={}", "has no effect with distill.lmbda: 0"),
      refused(kGrpoBase, "generation.role=other", "'other' is not declared under roles"),
      in_run("generation.num_generations", kOnPolicyRuns, "read_samples(reference).size(), 56u"),
      refused(kOnPolicyBase, "generation.num_generations=4", "draws one completion for each"),

      acts(kGrpoBase, "generation.max_new_tokens=5", draw),
      acts(kGrpoBase, "generation.temperature=0.7", draw),
      acts(kGrpoBase, "generation.top_p=0.5", draw),
      acts(kGrpoBase, "generation.top_k=5", draw),
      acts(kGrpoBase, "generation.min_p=0.1", draw),
      acts(kGrpoBase, "generation.repetition_penalty=1.2", draw),
      acts(kGrpoBase, "generation.min_new_tokens=3", draw),
      acts(kGrpoBase, "generation.typical_p=0.9", draw),
      acts(kGrpoBase, "generation.presence_penalty=0.5", draw),
      acts(kGrpoBase, "generation.frequency_penalty=0.5", draw),
      refused(kGrpoBase, "generation.min_new_tokens=4", "must be below max_new_tokens"),
      refused(
          kGrpoBase, "generation.presence_penalty=0.5", "penalties alone",
          {"roles.reference={model: FOLDER/student}", "grpo.beta=0.1", "grpo.kl_in_reward=true"}),
      acts(kGrpoBase, "generation.stop=[w3]", draw),
      // once dead: a special token, which is not part of any text
      acts(kGrpoBase, "generation.stop=['<|end|>']", draw),
      // never found: of its parts one is a text, one is none
      refused(kGrpoBase, "generation.stop=['w3<|end|>']", "holds the special token '<|end|>'"),

      acts(kGrpoBase, "generation.kv_cache=2MiB", engine),
      acts(kGrpoBase, "generation.max_tokens_per_step=1024", engine),
      acts(kGrpoBase, "generation.max_sequences=8", engine),
      acts(kGrpoBase, "generation.timeout=20m", timeout),
      in_run("generation.eval_num_generations", "tests/recipes/runs/evaluation_run_test.cc",
             R"({"eval_num_generations", "4"})"),
      in_run("generation.eval_pass_reward", "tests/recipes/rollout/rollout_run_test.cc",
             "eval_pass_reward = 0.5"),
      refused(kGrpoBase, "generation.eval_num_generations=4", "has no effect without data.eval"),
      refused(kOnPolicyBase, "generation.eval_num_generations=4", "nothing is drawn to evaluate"),
      refused(kGrpoBase, "generation.eval_pass_reward=0.5",
              "has no effect with eval_num_generations: 1"),
      in_run("generation.save_samples", kOnPolicyRuns, R"(generation["save_samples"] = "true")"),
  };
}

std::vector<KeyRow> sync_rows() {
  const std::string in_flight = "weight_sync.in_flight=abort";
  const std::string every = "weight_sync.every_steps=2";
  const std::string nothing = "nothing is in flight when";
  return {
      refused(kSftBase, "weight_sync={}", "has no effect without a generator"),
      acts(kGrpoBase, every, sync, {"grpo.max_staleness=2"}),
      refused(kGrpoBase, every, "more than grpo.max_staleness = 0"),
      refused(kOnPolicyBase, every, "always draws with the student of now"),
      refused(kRejectionBase, every, "always draws with the student of now"),
      acts(kGrpoBase, "weight_sync.bucket_bytes=1MiB", sync),
      acts(kGrpoBase, "rpc.receive_budget=64MiB", sync),
      refused(kGrpoBase, "weight_sync.bucket_bytes=2GiB", "above rpc.max_message_bytes",
              {"rpc.max_message_bytes=1GiB"}),

      in_run("weight_sync.in_flight", kOnPolicyRuns, "weight_sync: {in_flight: abort}"),
      // once dead
      refused(kOnPolicyBase, in_flight, nothing),
      refused(kRejectionBase, in_flight, nothing),
      refused(kGrpoBase, in_flight, nothing),
      refused(kGrpoBase, in_flight, nothing, {"grpo.max_staleness=1", every}),
  };
}

std::vector<KeyRow> reward_rows() {
  const auto of = [](const std::string& reward) {
    return std::vector<std::string>{"rewards=[{type: " + reward + "}]"};
  };
  const std::string commands = "tests/rewards/command_test.cc";
  return {
      acts(kGrpoBase, "rewards=[{type: exact_match}]", scores),
      refused(kSftBase, "rewards=[{type: numeric}]", "this block belongs to recipe"),
      acts(kGrpoBase, "rewards.0.type=exact_match", scores, of("numeric")),
      acts(kGrpoBase, "rewards.0.weight=0.5", scores),
      acts(kGrpoBase, "rewards.0.name=mine", scores),
      acts(kGrpoBase, "rewards.0.pattern='7'", scores, of("regex, pattern: '4'")),
      refused(kGrpoBase, "rewards.0.pattern='7'", "pattern has no effect on type: length"),
      acts(kGrpoBase, "rewards.0.min=5", scores),
      refused(kGrpoBase, "rewards.0.min=5", "min has no effect on type: numeric", of("numeric")),
      acts(kGrpoBase, "rewards.0.max=3", scores),
      refused(kGrpoBase, "rewards.0.max=3", "max has no effect on type: numeric", of("numeric")),
      acts(kGrpoBase, "rewards.0.unit=characters", scores, of("length, max: 8")),
      refused(kGrpoBase, "rewards.0.unit=characters", "unit has no effect on", of("numeric")),

      in_run("rewards[].symbolic", "tests/rewards/symbolic_test.cc",
             ".symbolic = test::player(part)"),
      refused(kGrpoBase, "rewards.0.symbolic=[same]", "symbolic has no effect on type: length"),
      in_run("rewards[].argv", commands, ".argv = test::player(part)"),
      refused(kGrpoBase, "rewards.0.argv=[judge]", "argv has no effect on type: length"),
      in_run("rewards[].url", "tests/rewards/http_test.cc", ".url = server_.url(path)"),
      refused(kGrpoBase, "rewards.0.url='http://localhost/'", "url has no effect on type: length"),
      in_run("rewards[].timeout", commands, "are not scored after 300ms (timeout)"),
      refused(kGrpoBase, "rewards.0.timeout=5s", "timeout has no effect on type: length"),
  };
}

// What a judge thinks shows in a run, with a real server.
std::vector<KeyRow> judge_rows() {
  const std::string run = "tests/engines/judge_run_test.cc";
  const std::string unit = "tests/rewards/judge_test.cc";
  const auto played_by = [](const std::string& engine) {
    return "roles.judge={external: {url: ['http://127.0.0.1:9'], engine: " + engine + "}}";
  };
  // Any text may be a question.
  const std::string entry =
      "rewards=[{type: judge, role: judge, template: FOLDER/train.jsonl, pattern: '(4)'}]";
  const std::vector<std::string> with{played_by("openai"), entry};
  return {
      in_run("rewards[].template", run, "template: "),
      in_run("rewards[].scale", unit, "how.scale = 0.1"),
      in_run("rewards[].max_new_tokens", unit, "how.max_new_tokens = 5"),
      refused(kGrpoBase, "rewards.0.template=a", "template has no effect on type: length"),
      refused(kGrpoBase, "rewards.0.scale=2", "scale has no effect on type: length"),
      refused(kGrpoBase, "rewards.0.max_new_tokens=2", "max_new_tokens has no effect on type"),
      refused(kGrpoBase, "rewards.0.template=FOLDER/none.jinja", "none.jinja", with),
      refused(kGrpoBase, "rewards.0.pattern='4'", "has no group", with),
      refused(kGrpoBase, played_by("vllm, tokenizer: FOLDER/student"), "a judge is asked in words",
              with),
      refused(kGrpoBase, "rewards=[{type: model, role: judge}]", "openai gives no number for a",
              with),
      refused(kGrpoBase, "roles.judge.world.tp=2", "a judge of ours is one process a replica",
              {"roles.judge={model: FOLDER/teacher}", entry}),
  };
}

// What a role scores shows in a run, with a server of the test's.
std::vector<KeyRow> reward_role_rows() {
  const std::string run = "tests/engines/reward_run_test.cc";
  const std::vector<std::string> with{
      "roles.judge={external: {engine: kserve, url: ['http://127.0.0.1:9'], tokenizer: "
      "FOLDER/student}}",
      "rewards=[{type: model, role: judge}]"};
  const auto of = [](const std::string& role) {
    return "rewards=[{type: model, role: " + role + "}]";
  };
  return {
      in_run("rewards[].role", run, "role: judge"),
      in_run("rewards[].label", run, "label: 1"),
      refused(kGrpoBase, "rewards.0.role=judge", "role has no effect on type: length"),
      refused(kGrpoBase, "rewards.0.label=1", "label has no effect on type: length"),
      refused(kGrpoBase, "rewards.0.type=model", "type: model needs role",
              {"rewards=[{type: numeric}]"}),
      refused(kGrpoBase, "rewards.0.label=-1", "expected at least 0", with),
      refused(kGrpoBase, of("judge"), "'judge' is not declared under roles"),
      refused(kGrpoBase, of("student"), "needs a role of its own"),
      refused(kGrpoBase, of("generator"), "cannot take over the student's weights"),
      refused(kGrpoBase, of("reference"), "give the reward a role of its own",
              {"roles.reference={model: FOLDER/student}", "grpo.beta=0.1"}),
      refused(kGrpoBase, "roles.judge={model: FOLDER/student}",
              "is a language model, which scores nothing", with),
      refused(kGrpoBase, "rewards.0.label=2", "the model of 'judge' has 2 labels",
              {"roles.judge={model: FOLDER/scorer}", "rewards=[{type: model, role: judge}]"}),
      refused(kGrpoBase, "roles.judge.world.pp=2", "has no pipeline stages",
              {"roles.judge={model: FOLDER/scorer}", "rewards=[{type: model, role: judge}]"}),
      refused(kGrpoBase, "roles.judge.batching=dynamic", "is for teachers and references",
              {"roles.judge={model: FOLDER/scorer}", "rewards=[{type: model, role: judge}]"}),
      refused(kGrpoBase, "roles.judge.external.engine=vllm",
              "vllm gives no number for a completion", with),
      refused(kGrpoBase,
              "roles.judge={external: {engine: kserve, url: ['http://127.0.0.1:9'], tokenizer: "
              "FOLDER/student, weights: {via: repository, folder: x}}}",
              "this role's model does not change", with),
  };
}

}  // namespace

std::vector<KeyRow> generation_rows() {
  std::vector<KeyRow> all;
  for (const auto& part : {draw_rows, sync_rows, reward_rows, reward_role_rows, judge_rows})
    for (KeyRow& row : part())
      all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test
