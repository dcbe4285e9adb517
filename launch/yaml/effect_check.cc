#include "launch/yaml/effect_check.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "launch/backends/placement.h"
#include "launch/kubernetes/check.h"
#include "launch/yaml/writer.h"
#include "recipes/registry.h"
#include "recipes/run/student_options.h"
#include "recipes/shared_checks.h"

namespace retort::launch {
namespace {

using recipes::Recipe;
using recipes::RecipePlaces;

// The first key of a block that does not have its default; "" if all have.
template <class Options>
std::string first_change(Options options) {
  std::vector<std::string> defaults;
  auto collect = [&](const char*, auto& value, const char*) {
    defaults.push_back(yaml_flow(value));
  };
  Options().fields(collect);

  std::string changed;
  size_t field = 0;
  auto compare = [&](const char* name, auto& value, const char*) {
    if (yaml_flow(value) != defaults[field++] && changed.empty()) changed = name;
  };
  options.fields(compare);
  return changed;
}

// Why `role` has nothing that could come from or go to a device; "" if it has.
std::string keeps_to_host(const Recipe& recipe, const std::string& role) {
  const auto roles = recipes::recipe_type(recipe).device_roles(recipe);
  if (!recipe.is_generator(role) && std::find(roles.begin(), roles.end(), role) == roles.end())
    return "this role answers log-probabilities of tokens, which are read in host memory";

  for (const std::string& end : {std::string(Recipe::kDrivingRole), role})
    if (recipe.roles.at(end).world.device != parallel::Device::kCuda)
      return "roles." + end + ".world.device is cpu";
  return "";
}

// Nobody starts a single process of a step again. 0 says what happens then: the run ends.
void check_slurm(const Recipe& recipe, const RecipePlaces& places) {
  const int64_t usual = recipes::RoleOptions().restarts;
  for (const auto& [name, role] : recipe.roles)
    if (role.restarts != usual && role.restarts != 0)
      places.refuse({"roles", name, "restarts"},
                    "has no effect with launch.backend: slurm: a process that is lost ends the "
                    "run, which launch.max_restarts or launch.slurm.requeue begins again from its "
                    "last checkpoint; remove the key");
  if (recipe.launch.launcher_lost != recipes::LauncherLost::kStop)
    places.refuse({"launch", "launcher_lost"},
                  "continue has no effect with launch.backend: slurm: a job ends with its "
                  "launcher, and launch.slurm.requeue begins it again; remove the key");
}

// Where processes are placed must be asked for by the backend, and they must fit.
void check_hosts(const Recipe& recipe, const RecipePlaces& places) {
  const recipes::LaunchOptions& launch = recipe.launch;
  const std::string has =
      "has no effect with launch.backend: " + std::string(enum_name(launch.backend)) +
      "; write backend: ";
  if (launch.backend == recipes::Backend::kKubernetes)
    check_kubernetes(recipe, places);
  else if (const std::string changed = first_change(launch.kubernetes); !changed.empty())
    places.refuse({"launch", "kubernetes", changed}, has + "kubernetes");
  if (launch.backend != recipes::Backend::kSlurm)
    if (const std::string changed = first_change(launch.slurm); !changed.empty())
      places.refuse({"launch", "slurm", changed}, has + "slurm");
  if (launch.backend != recipes::Backend::kSsh) {
    const std::string why = has + "ssh";
    if (!launch.hosts.empty()) places.refuse({"launch", "hosts"}, why);
    if (const std::string changed = first_change(launch.ssh); !changed.empty())
      places.refuse({"launch", "ssh", changed}, why);
    for (const auto& [name, role] : recipe.roles)
      if (!role.hosts.empty()) places.refuse({"roles", name, "hosts"}, why);
    if (launch.backend == recipes::Backend::kSlurm) check_slurm(recipe, places);
    return;
  }

  if (launch.hosts.empty())
    places.refuse({"launch", "backend"},
                  "ssh needs launch.hosts, e.g. hosts: [{host: gpu1, slots: 8}]");
  try {
    place_processes(recipe);
  } catch (const Error& error) {
    places.refuse({"launch", "hosts"}, error.message());
  }
}

// The student may go on with fewer replicas where a run goes on by itself, and hosts can be lost.
void check_min_dp(const Recipe& recipe, const RecipePlaces& places) {
  const recipes::LaunchOptions& launch = recipe.launch;
  if (!launch.min_dp) return;
  const recipes::KeyPath path{"launch", "min_dp"};
  if (launch.backend != recipes::Backend::kSsh)
    places.refuse(path, "has no effect without launch.backend: ssh, whose hosts may be lost");
  if (launch.max_restarts == 0)
    places.refuse(path, "has no effect without launch.max_restarts: no run goes on by itself");
  if (*launch.min_dp > recipe.student().world.dp)
    places.refuse(path, "is above roles.student.world.dp, which is " +
                            std::to_string(recipe.student().world.dp));
  if (recipe.train.batch_size_rampup_steps > 0)
    places.refuse(path,
                  "goes with a batch that is the same for every dp, which is not so while "
                  "train.batch_size_rampup_steps let it grow");
}

// The next launcher must prove the secret of the one before.
void check_launcher_lost(const Recipe& recipe, const RecipePlaces& places) {
  const recipes::LaunchOptions& launch = recipe.launch;
  if (launch.launcher_lost == recipes::LauncherLost::kContinue && !launch.secret_file)
    places.refuse({"launch", "launcher_lost"},
                  "continue needs launch.secret_file, which the next launcher reads");
}

void check_device_maps(const Recipe& recipe, const RecipePlaces& places) {
  for (const auto& [role, map] : recipe.rpc.device_maps) {
    const recipes::KeyPath path{"rpc", "device_maps", role};
    if (role == Recipe::kDrivingRole)
      places.refuse(path,
                    "a map is written from the student's side, under the role that it leads to: "
                    "teacher: {<the student's device>: <the teacher's>}");
    recipes::check_declared(recipe, places, path, role);
    if (const std::string why = keeps_to_host(recipe, role); !why.empty())
      places.refuse(path, "has no effect: " + why + "; remove the map");
    if (map.empty())
      places.refuse(path, "joins no devices; write {<the student's device>: <the role's>}");
  }
}

void check_rpc(const Recipe& recipe, const RecipePlaces& places) {
  check_device_maps(recipe, places);
  // The ranks of a role alone meet at an address, too, and each of them is in touch with the run's
  // store and launcher, by encrypted connections that heartbeats watch.
  const rpc::RpcOptions usual;
  rpc::RpcOptions others = recipe.rpc;
  others.encryption = usual.encryption;
  others.heartbeat_interval = usual.heartbeat_interval;
  others.peer_timeout = usual.peer_timeout;
  if (recipe.num_processes() > 1) others.bind = usual.bind;
  const std::string changed = first_change(others);
  if (recipe.roles.size() == 1 && !changed.empty())
    places.refuse({"rpc", changed},
                  "has no effect: the only role speaks to no other; remove the key");
}

// A weight says how often the rows of a training source are seen, relative to the others'.
void check_weights(const data::DataOptions& data, const RecipePlaces& places) {
  const double usual = data::Source().weight;
  if (data.train.size() == 1 && data.train[0].weight != usual)
    places.refuse({"data", "train", "0", "weight"},
                  "has no effect on the only source, being relative to the weights of others; "
                  "remove the key");
  for (size_t i = 0; i < data.eval.size(); ++i)
    if (data.eval[i].weight != usual)
      places.refuse({"data", "eval", std::to_string(i), "weight"},
                    "has no effect: an evaluation sees every row once; remove the key");
}

// Whether a source may hold rows of one of these formats.
bool may_hold(const data::DataOptions& data, std::initializer_list<data::Format> formats) {
  const auto fits = [&](const data::Source& source) {
    return source.format == data::Format::kAuto ||
           std::find(formats.begin(), formats.end(), source.format) != formats.end();
  };
  return std::any_of(data.train.begin(), data.train.end(), fits) ||
         std::any_of(data.eval.begin(), data.eval.end(), fits);
}

// Which tokens of rows of some formats are targets.
void check_target_choice(const data::DataOptions& data, const RecipePlaces& places) {
  using data::Format;
  const std::string why =
      "has no effect: no source holds such rows, as its `format` says; remove the key";
  if (!data.completion_only_loss && !may_hold(data, {Format::kPromptCompletion, Format::kAlpaca}))
    places.refuse({"data", "completion_only_loss"}, why);
  if (!data.assistant_only_loss && !may_hold(data, {Format::kMessages, Format::kShareGpt}))
    places.refuse({"data", "assistant_only_loss"}, why);
}

// What only a chat template sees, where no source may hold messages.
void check_template_settings(const data::DataOptions& data, const RecipePlaces& places) {
  using data::Format;
  if (may_hold(data, {Format::kMessages, Format::kShareGpt, Format::kPromptCompletion,
                      Format::kPreference}))
    return;
  const std::string why =
      "has no effect: no source holds messages, as its `format` says; remove the key";
  if (data.chat_template) places.refuse({"data", "chat_template"}, why);
  if (data.chat_template_kwargs.json != JsonBlock().json)
    places.refuse({"data", "chat_template_kwargs"}, why);
  if (data.template_date) places.refuse({"data", "template_date"}, why);
}

// Only gradients in float16 need a scale.
void check_loss_scale(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.student().dtype == recipes::FloatType::kFloat16) return;
  const auto& train = recipe.train;
  const recipes::TrainOptions defaults;
  const auto refuse_unless = [&](bool is_default, const char* key) {
    if (!is_default)
      places.refuse({"train", key},
                    "has no effect without roles.student.dtype: float16, whose range alone needs a "
                    "loss scale; remove the key");
  };
  refuse_unless(train.initial_loss_scale == defaults.initial_loss_scale, "initial_loss_scale");
  refuse_unless(train.min_loss_scale == defaults.min_loss_scale, "min_loss_scale");
  refuse_unless(train.loss_scale_window == defaults.loss_scale_window, "loss_scale_window");
}

void check_train(const Recipe& recipe, const RecipePlaces& places) {
  const auto& train = recipe.train;
  const recipes::TrainOptions defaults;
  const std::string no_eval = "has no effect without data.eval";
  // Who writes `data.eval=[]` over a recipe turns its evaluations off, however often they were.
  if (recipe.data.eval.empty() && !places.written({"data", "eval"})) {
    if (train.eval_steps != defaults.eval_steps) places.refuse({"train", "eval_steps"}, no_eval);
    if (train.eval_on_start) places.refuse({"train", "eval_on_start"}, no_eval);
  }
  if (recipe.data.eval.empty() && train.metric_for_best_model)
    places.refuse({"train", "metric_for_best_model"}, no_eval);
  if (recipe.student().world.dp == 1 && train.grad_bucket_bytes != defaults.grad_bucket_bytes)
    places.refuse({"train", "grad_bucket_bytes"},
                  "has no effect with roles.student.world.dp: 1, where gradients are not summed "
                  "over ranks; remove the key");
  if (train.neftune_noise_alpha && !recipes::recipe_type(recipe).adds_embedding_noise())
    places.refuse({"train", "neftune_noise_alpha"}, "is for recipe: sft; remove the key");
  check_loss_scale(recipe, places);
}

// A time that no collective is held to. A replica of a serving role has its own collectives.
void check_collective_timeout(const Recipe& recipe, const RecipePlaces& places) {
  const Duration asked = recipe.launch.collective_timeout;
  if (asked == recipes::LaunchOptions().collective_timeout) return;
  for (const auto& [name, role] : recipe.roles)
    if (name != Recipe::kDrivingRole && role.world.tp * role.world.pp > 1) return;

  const recipes::KeyPath path{"launch", "collective_timeout"};
  if (recipe.student().world.world_size() == 1)
    places.refuse(path,
                  "has no effect: no role is split over processes, so there is no collective; "
                  "remove the key");
  const Duration waits = recipes::student_timeout(recipe);
  if (waits > asked)
    places.refuse(
        path,
        "has no effect below " + format_duration(waits) +
            ": a rank of the student may wait that long for other roles and for rewards "
            "(launch.load_timeout, rpc.timeout, generation.timeout, rewards[].timeout), and the "
            "others for it");
}

}  // namespace

void check_effects(const Recipe& recipe, const RecipePlaces& places) {
  check_hosts(recipe, places);
  check_min_dp(recipe, places);
  check_launcher_lost(recipe, places);
  check_rpc(recipe, places);
  check_weights(recipe.data, places);
  check_target_choice(recipe.data, places);
  check_template_settings(recipe.data, places);
  check_train(recipe, places);
  check_collective_timeout(recipe, places);
}

}  // namespace retort::launch
