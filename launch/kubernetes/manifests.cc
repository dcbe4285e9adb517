#include "launch/kubernetes/manifests.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launch/kubernetes/merge.h"
#include "launch/kubernetes/names.h"
#include "launch/yaml/build.h"
#include "launch/yaml/reader.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/role_values.h"

namespace retort::launch {
namespace {

using recipes::Recipe;
using recipes::RoleOptions;

constexpr const char* kContainer = "retort";
constexpr const char* kRecipeFolder = "/etc/retort/recipe";
constexpr const char* kRecipeFile = "recipe.yaml";
constexpr const char* kSecretFolder = "/etc/retort/secret";
constexpr const char* kSecretFile = "secret";
constexpr const char* kPodKey = "launch.kubernetes.pod";
constexpr const char* kGraceKey = "terminationGracePeriodSeconds";

YamlNode written_pod(const Recipe& recipe) {
  return parse_yaml(recipe.launch.kubernetes.pod.flow, kPodKey);
}

int64_t port_of(const Recipe& recipe) {
  const int64_t port = recipe.launch.rendezvous.port;
  return port != 0 ? port : kKubernetesPort;
}

class Manifests {
 public:
  Manifests(const Recipe& recipe, const ManifestOptions& options)
      : recipe_(recipe),
        options_(options),
        names_(kubernetes_names(recipe)),
        pod_(written_pod(recipe)) {}

  std::string text() const {
    std::string all = yaml_document(secret());
    for (const YamlNode& one : {recipe_map(), service()})
      all += "---\n" + yaml_document(one);
    for (const auto& [name, role] : recipe_.roles)
      all += "---\n" + yaml_document(job(name, role));
    return all;
  }

 private:
  YamlNode labels(const std::string& role = "") const {
    YamlNode block = yaml_block({{"app.kubernetes.io/name", yaml_string("retort")},
                                 {"app.kubernetes.io/instance", yaml_string(names_.run)}});
    if (!role.empty())
      add_entry(block, "app.kubernetes.io/component", yaml_string(names_.jobs.at(role)));
    return block;
  }

  YamlNode object(const char* version, const char* kind, const std::string& name,
                  const std::string& role = "") const {
    return yaml_block(
        {{"apiVersion", yaml_string(version)},
         {"kind", yaml_string(kind)},
         {"metadata", yaml_block({{"name", yaml_string(name)},
                                  {"namespace", yaml_string(recipe_.launch.kubernetes.name_space)},
                                  {"labels", labels(role)}})}});
  }

  // Immutable: who applies a second time, with another secret, is refused and harms nothing.
  YamlNode secret() const {
    YamlNode made = object("v1", "Secret", names_.run);
    add_entry(made, "immutable", yaml_switch(true));
    add_entry(made, "type", yaml_string("Opaque"));
    YamlNode data = yaml_block({{kSecretFile, yaml_string(options_.secret)}});
    for (const auto& [role, variables] : role_values(recipe_))
      for (const auto& [name, value] : variables)
        add_entry(data, secret_key(role, name), yaml_string(value));
    add_entry(made, "stringData", std::move(data));
    return made;
  }

  // The Secret's key for the value of a role's variable.
  std::string secret_key(const std::string& role, const std::string& variable) const {
    return names_.jobs.at(role) + "." + variable;
  }

  YamlNode recipe_map() const {
    YamlNode made = object("v1", "ConfigMap", names_.run);
    add_entry(made, "immutable", yaml_switch(true));
    const std::string text = resolved_yaml(recipe_of_pods(recipe_));
    add_entry(made, "data", yaml_block({{kRecipeFile, yaml_string(text)}}));
    return made;
  }

  YamlNode service() const {
    YamlNode made = object("v1", "Service", names_.run);
    const YamlNode port =
        yaml_block({{"name", yaml_string("rendezvous")}, {"port", yaml_number(port_of(recipe_))}});
    add_entry(made, "spec",
              yaml_block({{"clusterIP", yaml_string("None")},
                          {"publishNotReadyAddresses", yaml_switch(true)},
                          {"selector", labels()},
                          {"ports", yaml_list({port})}}));
    return made;
  }

  YamlNode job(const std::string& name, const RoleOptions& role) const {
    YamlNode made = object("batch/v1", "Job", names_.jobs.at(name), name);
    const int64_t ranks = role.world.world_size();

    // A Job starts no rank again, because a rank that joined cannot come back into its run.
    const YamlNode exit_codes = yaml_block({{"containerName", yaml_string(kContainer)},
                                            {"operator", yaml_string("NotIn")},
                                            {"values", yaml_list({yaml_number(0)})}});
    const YamlNode rule =
        yaml_block({{"action", yaml_string("FailJob")}, {"onExitCodes", exit_codes}});
    const YamlNode pod = yaml_block(
        {{"metadata", yaml_block({{"labels", labels(name)}})}, {"spec", pod_spec(name, role)}});

    add_entry(made, "spec",
              yaml_block({{"completionMode", yaml_string("Indexed")},
                          {"completions", yaml_number(ranks)},
                          {"parallelism", yaml_number(ranks)},
                          {"backoffLimit", yaml_number(0)},
                          {"podFailurePolicy", yaml_block({{"rules", yaml_list({rule})}})},
                          {"template", pod}}));
    return made;
  }

  YamlNode pod_spec(const std::string& name, const RoleOptions& role) const {
    const auto grace = std::chrono::duration_cast<std::chrono::seconds>(pod_grace(recipe_));
    YamlNode spec =
        yaml_block({{"subdomain", yaml_string(names_.run)},
                    {"restartPolicy", yaml_string("Never")},
                    {kGraceKey, yaml_number(grace.count())},
                    // A Service of another's that is called retort-x would set RETORT_X_PORT.
                    {"enableServiceLinks", yaml_switch(false)},
                    {"containers", yaml_list({container(name, role)})},
                    {"volumes", volumes()}});
    merge_into(spec, pod_, kPodKey);
    check_names(spec);
    return spec;
  }

  YamlNode container(const std::string& name, const RoleOptions& role) const {
    const std::string file = std::string(kRecipeFolder) + "/" + kRecipeFile;
    std::vector<YamlNode> command{yaml_string("retort"), yaml_string("join"), yaml_string(file)};
    if (options_.resume) command.push_back(yaml_string("--resume"));
    if (options_.overwrite) command.push_back(yaml_string("--overwrite"));
    YamlNode made = yaml_block({{"name", yaml_string(kContainer)},
                                {"image", yaml_string(recipe_.launch.kubernetes.image.value())},
                                {"command", yaml_list(std::move(command))},
                                {"env", yaml_list(variables(name))}});

    // One rank a pod, so one device.
    if (role.world.device == parallel::Device::kCuda)
      add_entry(made, "resources",
                yaml_block({{"limits", yaml_block({{"nvidia.com/gpu", yaml_string("1")}})}}));
    add_entry(made, "volumeMounts", mounts());
    return made;
  }

  std::vector<YamlNode> variables(const std::string& role) const {
    const auto variable = [](const char* name, const std::string& value) {
      return yaml_block({{"name", yaml_string(name)}, {"value", yaml_string(value)}});
    };
    std::vector<YamlNode> all{
        variable("RETORT_ROLE", role),
        variable("RETORT_SECRET_FILE", std::string(kSecretFolder) + "/" + kSecretFile)};
    if (role != Recipe::kDrivingRole)
      all.push_back(variable("RETORT_RENDEZVOUS",
                             names_.rendezvous() + ":" + std::to_string(port_of(recipe_))));
    // What may be a key of its own stands in the Secret alone; the recipe of the pods has its name.
    for (const auto& [name, value] : recipe_.roles.at(role).env) {
      const YamlNode place = yaml_block(
          {{"name", yaml_string(names_.run)}, {"key", yaml_string(secret_key(role, name))}});
      all.push_back(yaml_block(
          {{"name", yaml_string(name)}, {"valueFrom", yaml_block({{"secretKeyRef", place}})}}));
    }
    return all;
  }

  static std::string volume_name(size_t index) { return "retort-volume-" + std::to_string(index); }

  YamlNode mounts() const {
    const auto mount = [](const std::string& name, const std::string& path, bool read_only) {
      YamlNode made = yaml_block({{"name", yaml_string(name)}, {"mountPath", yaml_string(path)}});
      if (read_only) add_entry(made, "readOnly", yaml_switch(true));
      return made;
    };
    std::vector<YamlNode> all{mount("retort-recipe", kRecipeFolder, true),
                              mount("retort-secret", kSecretFolder, true)};
    const auto& volumes = recipe_.launch.kubernetes.volumes;
    for (size_t i = 0; i < volumes.size(); ++i)
      all.push_back(mount(volume_name(i), volumes[i].path, volumes[i].read_only));
    return yaml_list(std::move(all));
  }

  YamlNode volumes() const {
    // A pod sees no variables of other roles.
    const YamlNode own_secret =
        yaml_block({{"key", yaml_string(kSecretFile)}, {"path", yaml_string(kSecretFile)}});
    std::vector<YamlNode> all{
        yaml_block({{"name", yaml_string("retort-recipe")},
                    {"configMap", yaml_block({{"name", yaml_string(names_.run)}})}}),
        yaml_block({{"name", yaml_string("retort-secret")},
                    {"secret", yaml_block({{"secretName", yaml_string(names_.run)},
                                           {"items", yaml_list({own_secret})}})}})};
    const auto& volumes = recipe_.launch.kubernetes.volumes;
    for (size_t i = 0; i < volumes.size(); ++i) {
      YamlNode one = yaml_block({{"name", yaml_string(volume_name(i))}});
      if (volumes[i].claim)
        add_entry(one, "persistentVolumeClaim",
                  yaml_block({{"claimName", yaml_string(*volumes[i].claim)}}));
      else
        merge_into(one, parse_yaml(volumes[i].source.flow, "launch.kubernetes.volumes"),
                   "launch.kubernetes.volumes[" + std::to_string(i) + "].source");
      all.push_back(std::move(one));
    }
    return yaml_list(std::move(all));
  }

  // A pod must be known by the name that its Job gives it, and its container be told its rank by
  // that alone.
  static void check_names(const YamlNode& spec) {
    for (const char* key : {"hostname", "hostNetwork", "setHostnameAsFQDN"})
      if (spec.find(key))
        refuse_at(std::string(kPodKey) + "." + key,
                  "a pod of the run is found by the name that its Job gives it; remove it");

    constexpr std::array<std::string_view, 3> kOwn{"RETORT_ROLE", "RETORT_SECRET_FILE",
                                                   "RETORT_RENDEZVOUS"};
    const YamlNode& container = spec.find("containers")->value.items.front();
    for (const YamlNode& variable : container.find("env")->value.items) {
      const std::string& name = variable.find("name")->value.scalar;
      if (!name.starts_with("RETORT_") || name == "RETORT_LOG") continue;
      const bool is_own = std::ranges::find(kOwn, name) != kOwn.end();
      if (!is_own || variable.entries.size() != 2)
        refuse_at(std::string(kPodKey) + ".containers[retort].env[" + name + "]",
                  "the Job says which rank a pod is, and the recipe the rest; remove it");
    }
  }

  const Recipe& recipe_;
  const ManifestOptions& options_;
  const KubernetesNames names_;
  const YamlNode pod_;
};

}  // namespace

std::string kubernetes_manifests(const Recipe& recipe, const ManifestOptions& options) {
  return Manifests(recipe, options).text();
}

Recipe recipe_of_pods(const Recipe& recipe) {
  Recipe inside = recipe;
  inside.launch.backend = recipes::Backend::kLocal;
  inside.launch.kubernetes = {};
  inside.launch.secret_file.reset();
  inside.launch.rendezvous.port = port_of(recipe);
  return inside;
}

Duration pod_grace(const Recipe& recipe) {
  const YamlNode pod = written_pod(recipe);
  const auto* entry = pod.find(kGraceKey);
  if (entry == nullptr) return recipes::kPodGrace;
  int64_t seconds = 0;
  try {
    read_scalar(entry->value, seconds);
  } catch (const Error& error) {
    refuse_at(std::string(kPodKey) + "." + kGraceKey, error.message());
  }
  return std::chrono::seconds(seconds);
}

}  // namespace retort::launch
