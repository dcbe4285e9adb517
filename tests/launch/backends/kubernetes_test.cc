// What `retort launch --dry-run` prints, and what things are called there.
#include <gtest/gtest.h>

#include <cstdlib>

#include "launch/document/recipe_file.h"
#include "launch/kubernetes/manifests.h"
#include "launch/kubernetes/merge.h"
#include "launch/kubernetes/names.h"
#include "launch/yaml/build.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/tree.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {
namespace fs = std::filesystem;

using launch::YamlNode;
using Strings = std::vector<std::string>;

fs::path goldens() { return source_folder() / "tests/launch/goldens"; }

recipes::Recipe golden_recipe(const Strings& overrides = {}) {
  return launch::load_recipe(goldens() / "kubernetes.yaml", overrides, {.cuda = true});
}

Strings documents_of(const std::string& text) {
  Strings documents;
  for (size_t begin = 0;;) {
    const size_t end = text.find("\n---\n", begin);
    documents.push_back(text.substr(begin, end == std::string::npos ? end : end + 1 - begin));
    if (end == std::string::npos) return documents;
    begin = end + 5;
  }
}

const YamlNode& at(const YamlNode& node, const Strings& path) {
  const YamlNode* here = &node;
  for (const std::string& key : path) {
    const auto* entry = here->find(key);
    if (entry == nullptr) throw Error(ErrorCode::kInvalidArgument, "there is no " + key);
    here = &entry->value;
    while (here->kind == YamlNode::Kind::kList)
      here = &here->items.at(0);
  }
  return *here;
}

std::string embedded_recipe(const std::string& manifests) {
  return at(launch::parse_yaml(documents_of(manifests).at(1), "map"), {"data", "recipe.yaml"})
      .scalar;
}

// With RETORT_UPDATE_DOCS=1 the file is written first. The recipe in it is looked at below: it has
// every key of the language.
TEST(KubernetesManifests, AreThoseOfTheGoldenFile) {
  std::string text = launch::kubernetes_manifests(golden_recipe(), {.secret = "0123456789abcdef"});
  const size_t begin = text.find("  recipe.yaml: |\n");
  const size_t end = text.find("---\n", begin);
  ASSERT_NE(begin, std::string::npos) << text;
  text.replace(begin, end - begin, "  recipe.yaml: the recipe\n");

  const fs::path golden = goldens() / "kubernetes_manifests.yaml";
  if (std::getenv("RETORT_UPDATE_DOCS")) write_file_atomically(golden, text);
  EXPECT_EQ(read_file(golden), text);
}

TEST(KubernetesManifests, HoldTheRecipeThatPodsRun) {
  const std::string inside =
      embedded_recipe(launch::kubernetes_manifests(golden_recipe({"seed=77"}), {.secret = "s"}));
  const recipes::Recipe read =
      launch::parse_recipe(inside, "map", {.cuda = true, .check_files = false});
  EXPECT_EQ(launch::resolved_yaml(read), inside);
  EXPECT_EQ(read.seed, 77);
  EXPECT_EQ(read.launch.backend, recipes::Backend::kLocal);
  EXPECT_FALSE(read.launch.kubernetes.image);
  EXPECT_EQ(read.launch.rendezvous.port, 7171);
  EXPECT_EQ(read.launch.stop_timeout, Duration(50'000));
  EXPECT_EQ(read.roles.at("generator").restarts, 0);
}

// Whoever may read a ConfigMap or a Job reads no key of the run's there.
TEST(KubernetesManifests, HoldTheValuesOfVariablesInTheSecretAlone) {
  const std::string text = launch::kubernetes_manifests(
      golden_recipe({"roles.student.env={HF_TOKEN: hf_4711}",
                     "roles.generator.env={HF_TOKEN: hf_0815, OTHER_KEY: ''}"}),
      {.secret = "0123456789abcdef"});
  const YamlNode secret = launch::parse_yaml(documents_of(text).at(0), "secret");
  const YamlNode& data = at(secret, {"stringData"});
  const std::string student =
      at(launch::parse_yaml(documents_of(text).at(3), "job"), {"metadata", "name"}).scalar;
  EXPECT_EQ(at(data, {student + ".HF_TOKEN"}).scalar, "hf_4711");
  EXPECT_EQ(data.entries.size(), 4u) << launch::yaml_line(data);
  for (const char* value : {"hf_4711", "hf_0815"}) {
    const size_t found = text.find(value);
    ASSERT_NE(found, std::string::npos) << text;
    EXPECT_LT(found, text.find("kind: ConfigMap")) << value;
    EXPECT_EQ(text.find(value, found + 1), std::string::npos) << value << " stands twice:\n"
                                                              << text;
  }

  // Each pod has those of its role, and sees no others in the folder with the secret.
  const YamlNode job = launch::parse_yaml(documents_of(text).at(3), "job");
  const YamlNode& container = at(job, {"spec", "template", "spec", "containers"});
  const std::string env = launch::yaml_line(container.find("env")->value);
  EXPECT_NE(env.find("{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: "), std::string::npos)
      << env;
  EXPECT_NE(env.find("key: " + student + ".HF_TOKEN"), std::string::npos) << env;
  EXPECT_EQ(env.find("OTHER_KEY"), std::string::npos) << env;
  const std::string volumes =
      launch::yaml_line(at(job, {"spec", "template", "spec"}).find("volumes")->value);
  EXPECT_NE(volumes.find("items: [{key: secret, path: secret}]"), std::string::npos) << volumes;

  const recipes::Recipe inside = launch::parse_recipe(
      embedded_recipe(text), "map", {.cuda = true, .check_files = false, .env_values = false});
  EXPECT_EQ(inside.roles.at("generator").env.size(), 2u);
}

TEST(KubernetesManifests, SayHowARunGoesOn) {
  const auto command = [](const launch::ManifestOptions& options) {
    const std::string text = launch::kubernetes_manifests(golden_recipe(), options);
    const YamlNode job = launch::parse_yaml(documents_of(text).at(3), "job");
    const YamlNode& container = at(job, {"spec", "template", "spec", "containers"});
    return launch::yaml_line(container.find("command")->value);
  };
  const std::string join = "[retort, join, /etc/retort/recipe/recipe.yaml";
  EXPECT_EQ(command({}), join + "]");
  EXPECT_EQ(command({.resume = true}), join + ", \"--resume\"]");
  EXPECT_EQ(command({.overwrite = true}), join + ", \"--overwrite\"]");
}

// What is handed to pods as it is written is no variable of who reads the run's recipe again.
TEST(KubernetesManifests, AFreeBlockIsSavedAsItWasMeant) {
  const recipes::Recipe recipe =
      golden_recipe({"launch.kubernetes.pod.priorityClassName='$${UNSET_HERE}/x'"});
  const std::string text = launch::resolved_yaml(recipe);
  const recipes::Recipe again =
      launch::parse_recipe(text, "saved", {.cuda = true, .check_files = false});
  EXPECT_EQ(again.launch.kubernetes.pod.flow, recipe.launch.kubernetes.pod.flow);
  const std::string manifests = launch::kubernetes_manifests(again, {.secret = "s"});
  EXPECT_NE(manifests.find("priorityClassName: \"${UNSET_HERE}/x\""), std::string::npos)
      << manifests;
}

// Text of another's stays text, and what has a type keeps it.
TEST(YamlDocument, IsReadAsTheSameTree) {
  const std::string text =
      R"({a: "8", b: 8, c: "true", d: true, e: null, f: [], g: {}, h: ["x: y", "", 1.5, 500m],)"
      R"( "no": "no", i: "two\nlines\n", j: "- x", k: "$${HOME}", l: a b})";
  const YamlNode tree = launch::parse_yaml(text, "text");
  // ${} is no matter of YAML's: yaml_line() writes what parse_yaml() reads.
  const std::string line = launch::yaml_line(tree);
  EXPECT_EQ(launch::yaml_line(launch::parse_yaml(line, "line")), line);

  const std::string document = launch::yaml_document(tree);
  EXPECT_NE(document.find("\"${HOME}\""), std::string::npos) << document;
  std::string escaped = document;
  escaped.replace(escaped.find("${"), 2, "$${");
  EXPECT_EQ(launch::yaml_line(launch::parse_yaml(escaped, "document")), line) << document;
}

std::string merged(const std::string& spec, const std::string& extra) {
  YamlNode tree = launch::parse_yaml(spec, "spec");
  launch::merge_into(tree, launch::parse_yaml(extra, "extra"), "pod");
  return launch::yaml_line(tree);
}

TEST(PodMerge, AddsKeysAndItemsAndJoinsThoseOfOneName) {
  EXPECT_EQ(merged("{a: {b: 1}}", "{a: {c: 2}, d: [x]}"), "{a: {b: 1, c: 2}, d: [x]}");
  EXPECT_EQ(merged("{list: [{name: a, x: 1}]}", "{list: [{name: b}, {name: a, z: 2}]}"),
            "{list: [{name: a, x: 1, z: 2}, {name: b}]}");
  EXPECT_EQ(merged("{volumeMounts: [{name: a, mountPath: /a}]}",
                   "{volumeMounts: [{name: a, mountPath: /b}]}"),
            "{volumeMounts: [{name: a, mountPath: /a}, {name: a, mountPath: /b}]}");
  EXPECT_EQ(merged("{a: 1, c: [x, y]}", "{a: 1, c: [x, y]}"), "{a: 1, c: [x, y]}");
}

TEST(PodMerge, RefusesAnotherValueByItsPlace) {
  expect_refused("pod.list[a].x: the run needs 1 here, this says 2; remove it",
                 [] { merged("{list: [{name: a, x: 1}]}", "{list: [{name: a, x: 2}]}"); });
  expect_refused("pod.list: each item needs `name`",
                 [] { merged("{list: [{name: a}]}", "{list: [{x: 2}]}"); });
  expect_refused("pod.volumeMounts[/a].name: the run needs a here, this says b", [] {
    merged("{volumeMounts: [{name: a, mountPath: /a}]}",
           "{volumeMounts: [{name: b, mountPath: /a}]}");
  });
  expect_refused("pod.c: the run needs [x] here", [] { merged("{c: [x]}", "{c: [x, y]}"); });
  expect_refused("pod.c: the run needs [x] here", [] { merged("{c: [x]}", "{c: {x: 1}}"); });
}

recipes::Recipe named(const std::string& output_dir, const Strings& roles = {},
                      const std::string& claim = "a") {
  recipes::Recipe recipe;
  recipe.output_dir = output_dir;
  recipe.roles["student"];
  for (const std::string& role : roles)
    recipe.roles[role];
  recipe.launch.kubernetes.volumes = {{.path = "/runs", .claim = claim}};
  return recipe;
}

std::string run_of(const recipes::Recipe& recipe) { return launch::kubernetes_names(recipe).run; }

TEST(KubernetesNames, AreLabelsThatADnsServerTakes) {
  EXPECT_EQ(launch::dns_label("Qwen 3//GRPO_a.", 40), "qwen-3-grpo-a");
  EXPECT_EQ(launch::dns_label("--", 40), "");
  EXPECT_EQ(launch::dns_label("abc-def", 4), "abc");
  for (const std::string name : {"/runs/a", "/runs/7", "/runs/\u00e9\u00e9", "/runs/", "/runs/-",
                                 "/runs/a-very-long-name-of-a-run-that-somebody-thought-of/"}) {
    const auto names = launch::kubernetes_names(named(name, {"a-very-long-name-of-a-role"}));
    const std::string longest = names.jobs.at("a-very-long-name-of-a-role") + "-1234567890";
    EXPECT_LE(longest.size(), 63U) << longest;
    EXPECT_EQ(launch::dns_label(longest, 100), longest);
    EXPECT_TRUE(names.run.front() >= 'a' && names.run.front() <= 'z') << names.run;
    EXPECT_EQ(names.rendezvous(), names.run + "-student-0." + names.run);
  }
}

TEST(KubernetesNames, AreThoseOfOneRunAlone) {
  EXPECT_EQ(run_of(named("/runs/a")), run_of(named("/runs/x/../a/")));
  EXPECT_NE(run_of(named("/runs/a")), run_of(named("/runs/A")));
  EXPECT_NE(run_of(named("/runs/x/a")), run_of(named("/runs/y/a")));
  EXPECT_NE(run_of(named("/runs/a")), run_of(named("/runs/a", {}, "b"))) << "another volume";

  const Strings roles{
      "Student", "a-very-long-name-1", "a-very-long-name-2", "a_b", "A-b", "a-b", "_",
      "role",    "student-2"};
  std::set<std::string> jobs;
  const auto names = launch::kubernetes_names(named("/runs/a", roles));
  for (const auto& [role, job] : names.jobs)
    EXPECT_TRUE(jobs.insert(job).second) << role << " has the Job of another: " << job;
  EXPECT_EQ(jobs.size(), roles.size() + 1);
  EXPECT_EQ(names.jobs.at("student"), names.run + "-student");
}

}  // namespace
}  // namespace retort::test
