// The document: the whole of what `retort launch` is asked to do, composed of the option structs of
// the modules. What reads it from YAML is launch/yaml; what carries it out is a RecipeType
// (recipes/recipe_type.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/named_list.h"
#include "base/options.h"
#include "base/units.h"
#include "engines/options.h"
#include "parallel/layout.h"
#include "recipes/data/options.h"
#include "recipes/distill/options.h"
#include "recipes/dpo/options.h"
#include "recipes/grpo/options.h"
#include "recipes/hosts_options.h"
#include "recipes/kto/options.h"
#include "recipes/kubernetes_options.h"
#include "recipes/rejection_sampling/options.h"
#include "recipes/reward_model/options.h"
#include "recipes/rewards/options.h"
#include "recipes/rollout/options.h"
#include "recipes/run/float_type.h"
#include "recipes/run/lora_options.h"
#include "recipes/run/train_options.h"
#include "recipes/sft/options.h"
#include "recipes/slurm_options.h"
#include "rpc/options.h"

namespace retort::recipes {

// The value of `recipe:`: the name of one of the registered recipe types (recipes/registry.h).
struct RecipeName {
  std::string text = "sft";

  // The names of all types, in the registry's order.
  static std::vector<std::string_view> choices();
};

enum class Batching { kAsSent, kDynamic };
enum class Backend { kLocal, kSsh, kSlurm, kKubernetes };

// One entry of `roles:`. A role with `external` has, once resolved, that one's tokenizer folder as
// its `model` and a process for each of its addresses.
struct RoleOptions {
  std::string model;
  std::optional<engines::ExternalOptions> external;
  parallel::Layout world;
  FloatType dtype = FloatType::kFloat32;
  std::optional<LoraOptions> lora;
  Batching batching = Batching::kAsSent;
  int64_t restarts = 3;
  std::vector<std::string> hosts;
  std::vector<int64_t> devices;
  std::map<std::string, std::string> env;
  // Those of `env` whose values its processes have and the reader of the recipe may not: what
  // stands there is this process's own, or empty. No key.
  std::set<std::string> env_elsewhere = {};

  template <class V>
  void fields(V& visit) {
    visit("model", model, "a Hugging Face model folder");
    visit("external", external, "instead of a model: an inference engine that is not ours");
    visit("world", world, "processes of this role: tp * pp * dp");
    visit("dtype", dtype, "of weights and activations");
    visit("lora", lora,
          "of the student: an adapter is trained and saved instead of the model (LoRA, in PEFT's "
          "words and files); null: the model is");
    visit("batching", batching,
          "teachers and references: requests are computed as sent, or those that wait together in "
          "one forward (equal numbers but for their last bits)");
    visit("restarts", restarts,
          "serving roles: how often the processes of a replica are started again when one of them "
          "is lost; 0: its loss ends the run. With backend: kubernetes the default is 0, and slurm "
          "never starts one again");
    visit("hosts", hosts, "of launch.hosts, where its processes may be; []: any of them");
    visit("devices", devices,
          "with world.device: cuda: indices of the devices that its ranks take on each host, in "
          "their order; []: those there that no role names are shared out among the roles");
    visit("env", env,
          "environment variables of this role's processes, before the launcher's own: NCCL_*, "
          "GLOO_*, CUDA_VISIBLE_DEVICES, keys; null: the value that the variable has where the "
          "recipe is read");
  }
};

// Where the processes of a run meet: the run's store.
struct RendezvousOptions {
  std::optional<std::string> address;
  int64_t port = 0;

  template <class V>
  void fields(V& visit) {
    visit("address", address,
          "host that every process of the run reaches the store by; null: with retort launch "
          "loopback, or where `hosts` reach it; with retort join what the environment says");
    visit("port", port, "of the store; 0: any that is free, with retort launch");
  }
  void validate() const;
};

enum class LauncherLost { kStop, kContinue };

// The `launch:` block.
struct LaunchOptions {
  Backend backend = Backend::kLocal;
  std::vector<HostOptions> hosts;
  SshOptions ssh;
  SlurmOptions slurm;
  KubernetesOptions kubernetes;
  RendezvousOptions rendezvous;
  std::optional<std::string> secret_file;
  Duration collective_timeout{120'000};
  Duration stop_timeout{120'000};
  Duration load_timeout{600'000};
  int64_t max_restarts = 0;
  std::optional<int64_t> min_dp;
  LauncherLost launcher_lost = LauncherLost::kStop;
  LogFormat log_format = LogFormat::kText;
  std::optional<int64_t> metrics_port;
  std::vector<std::string> metrics_command;

  template <class V>
  void fields(V& visit) {
    visit("backend", backend,
          "where processes are started: on this host, by ssh on `hosts`, by Slurm, or by a cluster "
          "that is given what --dry-run prints");
    visit("hosts", hosts, "backend: ssh: the hosts, filled in their order");
    visit("ssh", ssh, "backend: ssh: how the hosts are reached");
    visit("slurm", slurm, "backend: slurm: what `retort launch --submit` asks for");
    visit("kubernetes", kubernetes, "backend: kubernetes: the cluster's side of the run");
    visit("rendezvous", rendezvous, "where the processes of the run meet");
    visit("secret_file", secret_file,
          "file that holds the run's secret, 16 characters or more; null: made for the run, with "
          "retort launch");
    visit("collective_timeout", collective_timeout,
          "a collective that takes longer fails; the student's have at least as long as a rank may "
          "wait for other roles and for rewards");
    visit("stop_timeout", stop_timeout,
          "time to save and end after Ctrl-C or SIGTERM; then processes are killed. With backend: "
          "slurm or kubernetes 25s unless written; with slurm at most its KillWait");
    visit("load_timeout", load_timeout,
          "time for a role to load its model and serve, at the start and when it is started again");
    visit("max_restarts", max_restarts,
          "how often a run that failed goes on by itself from its last checkpoint");
    visit("min_dp", min_dp,
          "backend: ssh, with max_restarts: where the hosts that are left have too few slots the "
          "student goes on with a smaller dp, this or more, and more micro-batches a step; null: "
          "with its own dp only");
    visit("launcher_lost", launcher_lost,
          "what a run does whose launcher is killed or cut off: saves and ends; or goes on, until "
          "another one takes over (retort launch --attach RUN)");
    visit("log_format", log_format,
          "lines of logs/: text, or json objects with time, host, role, rank and step");
    visit(
        "metrics_port", metrics_port,
        "where the launcher shows the run's numbers to Prometheus, at /metrics; 0: any free port, "
        "which it prints; empty: nowhere");
    visit("metrics_command", metrics_command,
          "a program and its arguments that the launcher starts and gives each new line of "
          "metrics.jsonl on its stdin, e.g. for wandb or MLflow; if it ends early that is told, "
          "and the run goes on");
  }
  void validate() const;
  // Defaults that follow from the backend.
  void resolve(bool is_stop_timeout_written);
};

struct Recipe {
  RecipeName recipe;
  std::string output_dir;
  int64_t seed = 42;
  bool deterministic = false;
  NamedList<RoleOptions> roles;
  data::DataOptions data;
  TrainOptions train;
  std::optional<SftOptions> sft;
  std::optional<DistillOptions> distill;
  std::optional<DpoOptions> dpo;
  std::optional<KtoOptions> kto;
  std::optional<RewardModelOptions> reward_model;
  std::optional<GenerationOptions> generation;
  std::vector<rewards::RewardOptions> rewards;
  std::optional<RejectionSamplingOptions> rejection_sampling;
  std::optional<GrpoOptions> grpo;
  std::optional<WeightSyncOptions> weight_sync;
  LaunchOptions launch;
  rpc::RpcOptions rpc;

  template <class V>
  void fields(V& visit) {
    visit("recipe", recipe, "what is done");
    visit("output_dir", output_dir, "the run's folder");
    visit("seed", seed, "of the data order and of everything random");
    visit("deterministic", deterministic,
          "deterministic algorithms of LibTorch, cuBLAS and NCCL on devices; an operator that has "
          "none is an error (a CPU's results repeat anyway)");
    visit("roles", roles, "name -> role; `student` drives the run");
    visit("data", data, "training and evaluation data");
    visit("train", train, "length, batch, optimizer, and what happens when");
    visit("sft", sft, "recipe: sft");
    visit("distill", distill, "recipe: distill and on_policy_distill");
    visit("dpo", dpo, "recipe: dpo");
    visit("kto", kto, "recipe: kto");
    visit("reward_model", reward_model, "recipe: reward_model");
    visit("generation", generation,
          "how samples are drawn; recipe: rejection_sampling, on_policy_distill, grpo, and distill "
          "with lmbda");
    visit("rewards", rewards, "what samples are scored by; recipe: rejection_sampling and grpo");
    visit("rejection_sampling", rejection_sampling, "recipe: rejection_sampling");
    visit("grpo", grpo, "recipe: grpo");
    visit("weight_sync", weight_sync, "how generators follow the student; with generation");
    visit("launch", launch, "how processes are started and stopped");
    visit("rpc", rpc, "the connections between roles");
  }

  // The role whose processes run the recipe.
  static constexpr const char* kDrivingRole = "student";
  const RoleOptions& student() const { return roles.at(kDrivingRole); }
  bool is_generator(const std::string& role) const {
    return generation && generation->role == role;
  }
  int64_t num_processes() const;
};

// Roles that hold a frozen model, in the order in which the recipe names them: teachers and
// references.
std::vector<std::string> frozen_roles(const Recipe& recipe);
// Roles that score completions, each once, in the order of `rewards`.
std::vector<std::string> reward_roles(const Recipe& recipe);
// Whether rewards ask the role in words, which needs no tokenizer like the student's.
bool is_judge(const Recipe& recipe, const std::string& role);
// The frozen roles, those that score, and the generator: all that serve. Their tokenizers must be
// the student's, but for judges.
std::vector<std::string> serving_roles(const Recipe& recipe);
// Whether the block of this name holds anything.
bool has_block(const Recipe& recipe, std::string_view name);

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::Batching> {
  using E = retort::recipes::Batching;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"as_sent", E::kAsSent}, {"dynamic", E::kDynamic}}};
};
template <>
struct retort::EnumNames<retort::LogFormat> {
  using E = retort::LogFormat;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"text", E::kText}, {"json", E::kJson}}};
};
template <>
struct retort::EnumNames<retort::recipes::LauncherLost> {
  using E = retort::recipes::LauncherLost;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"stop", E::kStop}, {"continue", E::kContinue}}};
};

template <>
struct retort::EnumNames<retort::recipes::Backend> {
  using E = retort::recipes::Backend;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"local", E::kLocal},
       {"ssh", E::kSsh},
       {"slurm", E::kSlurm},
       {"kubernetes", E::kKubernetes}}};
};
