// Rows of the keys above all blocks, of roles, and of how processes start and speak.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {
namespace {

using namespace observed;

std::vector<KeyRow> top_rows() {
  return {
      refused(kSftBase, "recipe=distill", "`distill` is missing; recipe: distill needs at least"),
      in_run("output_dir", "tests/recipes/runs/bad_input_run_test.cc", "lies in output_dir"),
      acts(kSftBase, "seed=7", batches),
      acts(kGrpoBase, "seed=7", draw),

      // once dead: shows where the libraries of a device get their switches from
      acts(kSftBase, "deterministic=true", environment, {"roles.student.world.device=cuda"}),
  };
}

std::vector<KeyRow> role_rows() {
  return {
      refused(kSftBase, "roles.helper={model: FOLDER/student}", "no part of this recipe uses"),
      acts(kSftBase, "roles.student.model=FOLDER/teacher", plan),
      acts(kSftBase, "roles.student.dtype=bfloat16", plan),
      acts(kSftBase, "roles.student.dtype=float16", plan),
      in_run("roles.<name>.dtype", "tests/recipes/runs/float16_run_test.cc",
             "expect_float16_follows("),
      refused(kGrpoBase, "roles.student.dtype=float16", "must have the student's dtype"),
      acts(kSftBase, "roles.student.devices=[3]", plan, {"roles.student.world.device=cuda"}),
      in_run("roles.<name>.devices", "tests/recipes/runs/device_ranks_run_test.cc",
             "roles.student.devices=[2, 0]"),
      refused(kSftBase, "roles.student.devices=[0]", "with world.device: cpu"),
      acts(kSftBase, "roles.student.env={GLOO_SOCKET_IFNAME: lo}", environment),
      refused(kSftBase, "roles.student.env={NCCL_DEBUG: INFO}", "with world.device: cpu"),
      refused(kSftBase, "roles.student.env={NOT_SET_ANYWHERE: null}",
              "null means the value that NOT_SET_ANYWHERE has here"),

      in_run("roles.<name>.batching", "tests/roles/teacher_test.cc", "Batching::kDynamic"),
      in_run("roles.<name>.restarts", "tests/recipes/runs/on_policy_fault_test.cc",
             "roles.generator.restarts=0"),
      refused(kDistillBase, "roles.student.restarts=1", "is for roles that serve"),
      refused(kDistillBase, "roles.teacher.restarts=-1", "must not be negative"),
      in_run("roles.<name>.batching", "tests/recipes/runs/layouts_run_test.cc",
             "batching: dynamic"),
      refused(kSftBase, "roles.student.batching=dynamic", "has no effect on the driving role"),
      // once dead
      refused(kGrpoBase, "roles.generator.batching=dynamic", "is for teachers and references"),
  };
}

// What an engine is asked and how it is reached shows at a real one, and at servers of tests.
std::vector<KeyRow> external_rows() {
  const std::string role = "roles.<name>.external", run = "tests/engines/llama_run_test.cc";
  const std::vector<std::string> with{
      "roles.teacher={external: {engine: llamacpp, url: ['http://127.0.0.1:9'], tokenizer: "
      "FOLDER/teacher}}",
      "distill.payload=topk"};
  const std::string drawing =
      "roles.generator={external: {engine: llamacpp, url: ['http://127.0.0.1:9'], tokenizer: "
      "FOLDER/student, served_model: a, weights: {via: gguf, folder: x}}}";
  const auto refused_with = [&](const std::string& change, const std::string& message) {
    return refused(kDistillBase, "roles.teacher.external." + change, message, with);
  };
  return {
      in_run(role, run, "external: "),
      refused(kDistillBase, "roles.teacher.external={url: ['http://127.0.0.1:9'], tokenizer: x}",
              "a `model` or is `external`"),
      in_run(role + ".engine", run, "engine: llamacpp"),
      in_run(role + ".url", run, "url: ["),
      refused_with("url=[]", "url: is missing"),
      in_run(role + ".served_model", run, "served_model: tiny"),
      in_run(role + ".served_model", "tests/engines/sglang_fault_test.cc",
             R"(make({.served_model = "other"}))"),
      in_run(role + ".tokenizer", run, "tokenizer: "),
      refused_with("max_inflight=0", "must be at least 1"),
      in_run(role + ".max_inflight", run, "max_inflight: 8"),
      refused_with("timeout=0s", "must be positive"),
      in_run(role + ".timeout", run, "timeout: 60s"),
      acts(kOnPolicyBase, "roles.teacher.external.timeout=1h", timeout, with),
      refused_with("load_timeout=0s", "must be positive"),
      in_run(role + ".load_timeout", run, "load_timeout: 60s"),
      acts(kDistillBase, "roles.teacher.external.load_timeout=3h", timeout, with),
      refused_with("tolerance=-1", "must be positive"),
      in_run(role + ".tolerance", run, "tolerance: 1.0e-4"),
      in_run(role + ".tolerance", "tests/engines/probe_test.cc", "{.tolerance = 0.25}"),
      in_run(role + ".command", run, "CommandThatEndsIsSaid"),
      in_run(role + ".api_key_env", "tests/engines/options_test.cc", "api_key_env = "),
      in_run(role + ".api_key_file", "tests/engines/options_test.cc", "api_key_file = "),
      in_run(role + ".ca_file", "tests/http/tls_test.cc", "ca_file"),
      in_run(role + ".allow_plain_admin", "tests/engines/plain_admin_test.cc",
             "allow_plain_admin = true"),
      in_run(role + ".tensors", "tests/engines/options_test.cc", "o.tensors = "),
      refused_with("tensors={input_ids: x}", "is for engine: kserve"),
      refused_with("weights.via=gguf", "weights.folder: is missing"),
      refused_with("weights.folder=x", "has no effect with via: none"),
      refused(kGrpoBase,
              "roles.generator={external: {engine: llamacpp, url: ['http://127.0.0.1:9'], "
              "tokenizer: FOLDER/student, served_model: a/b, weights: {via: gguf, folder: x}}}",
              "has a slash"),
      refused(kGrpoBase, "generation.top_p=0.5", "no engine says from which tokens", {drawing}),
      refused(kRejectionBase, "generation.presence_penalty=0.5", "counts the tokens of the prompt",
              {drawing}),
      refused(kRejectionBase, "generation.min_new_tokens=2", "bars no end token", {drawing}),
      refused(kRejectionBase, "generation.typical_p=0.9", "sglang does not draw so",
              {"roles.generator={external: {engine: sglang, url: ['http://127.0.0.1:9'], "
               "tokenizer: FOLDER/student, weights: {via: folder, folder: x}}}"}),
      refused(kGrpoBase, "generation.temperature=0.7", "llama.cpp's are those at temperature 1",
              {drawing}),
      refused(kGrpoBase,
              "roles.generator={external: {engine: sglang, url: ['http://127.0.0.1:9'], "
              "tokenizer: FOLDER/student, served_model: a, weights: {via: gguf, folder: x}}}",
              "folder for engine: sglang"),
      refused(kDistillBase,
              "roles.teacher={external: {engine: sglang, url: ['http://127.0.0.1:9'], tokenizer: "
              "FOLDER/teacher}}",
              "gives no hidden states", {"distill.payload=hidden_states"}),
      in_run(role + ".engine", "tests/engines/sglang_recordings.h", "EngineKind::kSglang"),
      in_run(role + ".weights.via", run, "via: gguf"),
      in_run(role + ".weights.folder", run, ", folder: "),
      refused_with("weights.canary_tokens=0", "must be at least 1"),
      in_run(role + ".weights.canary_tokens", run, "canary_tokens: 48"),
  };
}

// An adapter in the place of the model.
std::vector<KeyRow> lora_rows() {
  const std::string lora = "roles.student.lora", run = "tests/recipes/runs/lora_run_test.cc";
  const std::vector<std::string> with{lora + "={r: 4}"};
  return {
      acts(kSftBase, lora + "={r: 4}", plan),
      refused(kDistillBase, "roles.teacher.lora={r: 4}", "is for the role that trains"),
      acts(kSftBase, lora + ".r=8", plan, with),
      refused(kSftBase, lora + ".r=0", "must be at least 1", with),
      in_run("roles.<name>.lora.lora_alpha", run, "lora_alpha=8.08"),
      refused(kSftBase, lora + ".lora_alpha=0", "must be above 0", with),
      in_run("roles.<name>.lora.use_rslora", run, "use_rslora=true"),
      in_run("roles.<name>.lora.lora_dropout", run, "lora_dropout=0.3"),
      refused(kGrpoBase, lora + ".lora_dropout=0.1", "is not for grpo with num_iterations above 1",
              {with[0], "grpo.num_iterations=2", "train.save_steps=2"}),
      refused(kSftBase, lora + ".lora_dropout=1", "at least 0 and below 1", with),
      refused(kSftBase, lora + ".lora_dropout=-0.1", "at least 0 and below 1", with),
      acts(kSftBase, lora + ".target_modules=[q_proj, v_proj]", plan, with),
      refused(kSftBase, lora + ".target_modules=[q_proj, all-linear]", "stands alone", with),
      refused(kSftBase, lora + ".target_modules=[q_proj, q_proj]", "twice", with),
      refused(kSftBase, lora + ".target_modules=[]", "is empty", with),
      refused(kSftBase, lora + ".target_modules=[lm_head]", "all-linear", with),
      acts(kSftBase, lora + R"(.target_modules='.*\.0\..*(q|v)_proj')", plan, with),
      refused(kSftBase, lora + ".target_modules='.*('", "is wrong at character", with),
      refused(kSftBase, lora + ".target_modules='(q|v)_proj'", "matches no linear layer", with),
      refused(kSftBase, lora + ".target_modules=[qkv_proj, q_proj]", "'qkv_proj' names no", with),
      acts(kSftBase, lora + ".modules_to_save=[lm_head]", plan, with),
      refused(kSftBase, lora + ".modules_to_save=[o_proj]", "a linear layer of a decoder", with),
      refused(kSftBase, lora + ".modules_to_save=[heads]", "is the end of no layer's", with),
      refused(kSftBase, lora + ".modules_to_save=[norm, norm]", "twice", with),
      refused(kSftBase, lora + ".modules_to_save=['']", "an empty name", with),
      in_run("roles.<name>.lora.adapter", "tests/recipes/make_lora_goldens.py",
             "adapter: $GOLDENS"),
      refused(kSftBase, lora + ".adapter=FOLDER/student", "has no adapter_config.json", with),
      acts(kRewardModelBase, lora + "={r: 4}", plan),
      acts(kGrpoBase, lora + ".push=adapter", plan, with),
      in_run("roles.<name>.lora.push", "tests/recipes/runs/lora_push_run_test.cc", "push: adapter"),
      refused(kSftBase, lora + ".push=adapter", "nothing is drawn", with),
      refused(kGrpoBase, lora + "={r: 4, push: adapter}", "give it the student's",
              {"roles.generator.model=FOLDER/teacher"}),
      in_run("roles.<name>.lora.adapter", run, "IsTheAdapterThatTrainingBeganWith"),
      in_run("dpo.reference", "tests/recipes/make_lora_goldens.py", "reference: student"),
      in_run("kto.reference", run, "kto: {beta: 0.1, reference: student}"),
      in_run("grpo.reference", run, R"({"reference", "student"})"),
  };
}

std::vector<KeyRow> world_rows() {
  const std::string world = "roles.student.world.";
  return {
      acts(kSftBase, world + "tp=2", plan),
      acts(kSftBase, world + "pp=2", plan),
      acts(kSftBase, world + "dp=2", batches),
      acts(kSftBase, world + "sequence_parallel=true", plan, {world + "tp=2"}),
      acts(kSftBase, world + "virtual_pp=2", plan,
           {world + "pp=2", "train.gradient_accumulation_steps=4"}),
      acts(kSftBase, world + "distributed_optimizer=true", plan, {world + "dp=2"}),
      acts(kSftBase, world + "device=cuda", environment, {"deterministic=true"}),
      acts(kSftBase, world + "threads=97", environment),

      refused(kSftBase, world + "sequence_parallel=true", "has no effect with world.tp 1"),
      refused(kSftBase, world + "virtual_pp=2", "has no effect with world.pp 1"),
      refused(kSftBase, world + "distributed_optimizer=true", "has no effect with world.dp 1"),
      refused(kSftBase, world + "device=cuda", "this build has no CUDA module"),
      refused(kDistillBase, "roles.teacher.world.virtual_pp=2", "teacher serves",
              {"roles.teacher.world.pp=2"}),
      refused(kDistillBase, "roles.teacher.world.distributed_optimizer=true", "teacher serves",
              {"roles.teacher.world.dp=2"}),
      refused(kGrpoBase, "roles.generator.world.pp=2", "is not split over pipeline stages"),
      refused(kGrpoBase, "roles.generator.world.sequence_parallel=true", "keeps no activations",
              {"roles.generator.world.tp=2"}),
  };
}

// Hosts that are placed on show in a plan; how they are reached shows on real ones.
std::vector<KeyRow> host_rows() {
  const std::string run = "tests/hosts/ssh_test.py";
  const std::string two = "launch.hosts=[{host: h1, slots: 1}, {host: h2, slots: 3}]";
  const std::vector<std::string> with{"launch.backend=ssh", two};
  return {
      refused(kDistillBase, "launch.backend=ssh", "ssh needs launch.hosts"),
      in_run("launch.backend", run, "backend: ssh"),
      refused(kDistillBase, two, "has no effect with launch.backend: local"),
      acts(kDistillBase, "launch.hosts=[{host: h1}, {host: h2}]", plan, with),
      refused(kDistillBase, "launch.hosts=[{host: h1}, {host: h1}]", "is there twice", with),
      acts(kDistillBase, "launch.hosts.1.host=h3", plan, with),
      refused(kDistillBase, "launch.hosts.1.host=-oProxyCommand=x", "one word", with),
      acts(kDistillBase, "launch.hosts.1.slots=4", plan, with),
      refused(kDistillBase, "launch.hosts.1.slots=0", "at least 1", with),
      refused(kDistillBase, "roles.student.world.dp=9",
              "roles.student does not fit: its rank 4 needs 1 slot(s) of one host, and free are "
              "h1 0 of 1, h2 0 of 3",
              with),
      refused(kDistillBase, "launch.hosts.0.address=a b", "one word", with),
      in_run("launch.hosts[].address", run, "address: "),
      in_run("launch.ssh.identity_file", "tests/hosts/runs.py", "identity_file: "),
      in_run("launch.ssh.program", run, "launch.ssh.program="),
      in_run("launch.ssh.user", run, "launch.ssh.user="),
      in_run("launch.ssh.port", run, "launch.ssh.port="),
      refused(kDistillBase, "launch.ssh.port=22222", "has no effect with launch.backend: local"),
      refused(kDistillBase, "launch.ssh.port=0", "between 1 and 65535", with),
      acts(kDistillBase, "roles.teacher.hosts=[h2]", plan,
           {"launch.backend=ssh", "launch.hosts=[{host: h1, slots: 3}, {host: h2, slots: 3}]"}),
      refused(kDistillBase, "roles.teacher.hosts=[h9]", "is none of launch.hosts", with),
      refused(kDistillBase, "roles.teacher.hosts=[h1]",
              "roles.teacher does not fit: its rank 0 needs 1 slot(s) of one host, and free are "
              "h1 0 of 1",
              with),
      refused(kDistillBase, "roles.teacher.hosts=[h1]", "has no effect with launch.backend: local"),
      in_run("launch.min_dp", "tests/hosts/lost_host_test.py", "launch.min_dp=1"),
      refused(kDistillBase, "launch.min_dp=1", "has no effect without launch.backend: ssh"),
      refused(kDistillBase, "launch.min_dp=1", "has no effect without launch.max_restarts", with),
      refused(kDistillBase, "launch.min_dp=2", "is above roles.student.world.dp, which is 1",
              {"launch.backend=ssh", two, "launch.max_restarts=1"}),
      refused(kDistillBase, "launch.min_dp=0", "must be at least 1"),
      refused(kDistillBase, "launch.min_dp=1", "batch_size_rampup_steps",
              {"launch.backend=ssh", two, "launch.max_restarts=1",
               "train.gradient_accumulation_steps=2", "train.batch_size_rampup_steps=2"}),
  };
}

// What a job is asked for.
std::vector<KeyRow> slurm_rows() {
  const std::string run = "tests/hosts/slurm_test.py";
  const std::vector<std::string> with{"launch.backend=slurm"};
  return {
      in_run("launch.backend", run, "backend: slurm"),
      acts(kSftBase, "launch.slurm.partition=long", batch, with),
      acts(kSftBase, "launch.slurm.account=lab", batch, with),
      acts(kSftBase, "launch.slurm.time=1-12:00:00", batch, with),
      acts(kSftBase, "launch.slurm.gres=gpu:4", batch, with),
      acts(kSftBase, "launch.slurm.args=[--qos=high]", batch, with),
      acts(kSftBase, "launch.slurm.requeue=false", batch, with),
      acts(kSftBase, "launch.stop_timeout=20s", batch, with),
      refused(kSftBase, "launch.slurm.gres=gpu:4", "has no effect with launch.backend: local"),
      refused(kSftBase, "launch.slurm.partition=a b", "expected one word", with),
      refused(kSftBase, "launch.slurm.args=[high]", "expected an option of sbatch", with),
      refused(kSftBase, "launch.slurm.args=[--ntasks=9]", "what the batch script says itself",
              with),
      refused(kSftBase, "launch.slurm.args=[-tx]", "write launch.slurm.time", with),
      refused(kDistillBase, "launch.hosts=[{host: h1}]", "has no effect with launch.backend: slurm",
              with),
      refused(kDistillBase, "launch.ssh.port=22222", "has no effect with launch.backend: slurm",
              with),
      refused(kDistillBase, "roles.teacher.hosts=[h1]", "has no effect with launch.backend: slurm",
              with),
      refused(kDistillBase, "roles.teacher.restarts=5", "has no effect with launch.backend: slurm",
              with),
      refused(kSftBase, "launch.launcher_lost=continue", "has no effect with launch.backend: slurm",
              with),
  };
}

std::vector<KeyRow> launch_rows() {
  const std::string two = "roles.student.world.dp=2";
  return {
      acts(kSftBase, "launch.collective_timeout=60s", timeout, {two}),
      in_run("launch.collective_timeout", "tests/recipes/runs/layout_fault_test.cc",
             "launch.collective_timeout=12s"),
      refused(kSftBase, "launch.collective_timeout=60s", "there is no collective"),
      refused(kDistillBase, "launch.collective_timeout=60s", "has no effect below 730s", {two}),
      in_run("launch.load_timeout", "tests/roles/generator_restart_test.cc", ".patience = 200ms"),
      acts(kDistillBase, "launch.load_timeout=1h", timeout),
      in_run("launch.rendezvous.address", "tests/recipes/runs/join_run_test.cc",
             "launch.rendezvous.address=127.0.0.1"),
      in_run("launch.rendezvous.port", "tests/recipes/runs/join_run_test.cc",
             "launch.rendezvous.port="),
      refused(kSftBase, "launch.rendezvous.port=70000", "must be a port"),
      refused(kSftBase, "launch.rendezvous.address=\"\"", "address is empty"),
      in_run("launch.secret_file", "tests/recipes/runs/join_run_test.cc", "launch.secret_file="),
      in_run("launch.max_restarts", "tests/recipes/runs/restart_run_test.cc",
             "launch.max_restarts=1"),
      in_run("launch.launcher_lost", "tests/recipes/runs/attach_run_test.cc",
             "launch.launcher_lost=continue"),
      refused(kSftBase, "launch.launcher_lost=continue", "continue needs launch.secret_file"),
      acts(kSftBase, "launch.log_format=json", environment),
      in_run("launch.metrics_port", "tests/recipes/runs/metrics_port_run_test.cc",
             "metrics_port=0"),
      refused(kSftBase, "launch.metrics_port=65536", "must be a port"),
      in_run("launch.metrics_command", "tests/recipes/runs/user_commands_run_test.cc",
             "launch.metrics_command=["),
      refused(kSftBase, "launch.metrics_command=['']", "begins with an empty word"),
      in_run("launch.stop_timeout", "tests/launch/supervision/supervisor_signal_test.cc",
             "stop_timeout = Duration(200)"),
  };
}

std::vector<KeyRow> rpc_rows() {
  const std::string agent = "tests/rpc/agent_test.cc";
  const std::string flow = "tests/rpc/agent_flow_test.cc";
  const std::string faults = "tests/rpc/process_fault_test.cc";
  return {
      // that a key reaches the agents of a run; the tests below see what it does there
      acts(kDistillBase, "rpc.channels=[basic]", agents),
      acts(kDistillBase, "rpc.bind=localhost", agents),
      acts(kDistillBase, "rpc.port=20000-60000", agents),
      acts(kDistillBase, "rpc.advertise=localhost", agents),
      acts(kDistillBase, "rpc.encryption=always", agents),
      acts(kDistillBase, "rpc.spin=20us", agents),
      acts(kDistillBase, "rpc.timeout=5m", agents),
      acts(kDistillBase, "rpc.queue_timeout=10s", agents),
      acts(kDistillBase, "rpc.max_inflight_calls=32", agents),
      acts(kDistillBase, "rpc.heartbeat_interval=200ms", agents),
      // 7ms for each of many processes, where it is not named
      acts(kDistillBase, "rpc.heartbeat_interval=1s", agents, {"roles.teacher.world.dp=200"}),
      acts(kDistillBase, "rpc.peer_timeout=30s", agents),
      acts(kDistillBase, "rpc.max_inflight_bytes=1GiB", agents),
      acts(kDistillBase, "rpc.receive_budget=8GiB", agents),
      acts(kDistillBase, "rpc.max_message_bytes=1GiB", agents),
      refused(kDistillBase, "rpc.transports=[shm]", "before they have proved anything"),
      in_run("rpc.channels", agent, R"({"basic", Encryption::kNever, {"basic"}})"),
      in_run("rpc.bind", agent, R"(rpc.bind = "localhost")"),
      in_run("rpc.port", agent, R"(rpc.port = "20000-60000")"),
      in_run("rpc.advertise", agent, R"(rpc.advertise = "localhost")"),
      in_run("rpc.encryption", agent, R"({"tls", Encryption::kAlways, {"basic"}})"),
      in_run("rpc.spin", agent, "rpc.spin = std::chrono::hours(1)"),
      refused(kDistillBase, "rpc.spin=1s", "would never sleep"),
      in_run("rpc.timeout", flow, "options.timeout = Duration(50)"),
      acts(kDistillBase, "rpc.timeout=5m", timeout),
      in_run("rpc.queue_timeout", flow, "options.queue_timeout = Duration(50)"),
      in_run("rpc.max_inflight_calls", flow, "two.max_inflight_calls = 2"),
      refused(kDistillBase, "rpc.max_inflight_calls=15", "at least 16"),
      in_run("rpc.heartbeat_interval", faults, "heartbeat_interval = Duration(200)"),
      in_run("rpc.peer_timeout", faults, "peer_timeout = Duration(3000)"),
      in_run("rpc.max_inflight_bytes", flow, "AFullWindowFailsOrWaitsAsAsked"),
      in_run("rpc.receive_budget", flow, "options.receive_budget = {8 << 20}"),
      in_run("rpc.max_message_bytes", flow, "small.max_message_bytes"),
      acts(kDistillBase, "rpc.device_maps={teacher: {0: 1}}", device_maps,
           {"roles.student.world.device=cuda", "roles.teacher.world.device=cuda"}),
      in_run("rpc.device_maps", "tests/roles/device_map_test.cc",
             "GoFromDeviceToDeviceWhereAMapSaysSo"),
      refused(kDistillBase, "rpc.device_maps={teacher: {0: 0}}", "student.world.device is cpu"),
      refused(kDistillBase, "rpc.device_maps={student: {0: 0}}", "from the student's side"),
      refused(kDistillBase, "rpc.device_maps={teachr: {0: 0}}", "did you mean 'teacher'?"),
      refused(kGrpoBase, "rpc.device_maps={generator: {0: 0}}", "student.world.device is cpu"),
      acts(kGrpoBase, "rpc.device_maps={generator: {0: 1}}", device_maps,
           {"roles.student.world.device=cuda", "roles.generator.world.device=cuda"}),
      refused(kDpoBase, "rpc.device_maps={reference: {0: 0}}", "log-probabilities of tokens"),
      // its ranks are in touch with the run's store and launcher
      acts(kSftBase, "rpc.peer_timeout=150s", agents),
      acts(kSftBase, "rpc.heartbeat_interval=200ms", agents),
      acts(kSftBase, "rpc.encryption=always", agents),
      refused(kSftBase, "rpc.timeout=5m", "the only role speaks to no other"),
      refused(kSftBase, "rpc.max_message_bytes=1GiB", "the only role speaks to no other"),
  };
}

}  // namespace

std::vector<KeyRow> run_rows() {
  std::vector<KeyRow> all;
  for (const auto& part : {top_rows, role_rows, external_rows, lora_rows, world_rows, host_rows,
                           slurm_rows, launch_rows, rpc_rows})
    for (KeyRow& row : part())
      all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test
