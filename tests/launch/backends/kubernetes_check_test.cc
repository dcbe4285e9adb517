// What --dry-run refuses, and what it prints, from the command's side.
#include <gtest/gtest.h>

#include "launch/commands/launch.h"
#include "launch/document/recipe_file.h"
#include "launch/kubernetes/manifests.h"
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using Strings = std::vector<std::string>;

class DryRun : public RecipeTest {
 protected:
  DryRun() { write_key_files(folder_); }

  static Strings pods() {
    return {"launch.backend=kubernetes", "launch.kubernetes.image=retort:1",
            "output_dir=/runs/first", "launch.kubernetes.volumes=[{path: /runs, claim: runs}]"};
  }

  recipes::Recipe loaded(const Strings& more) {
    Strings overrides = pods();
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load(kDistillBase, overrides, {.cuda = true});
  }

  // Of what the command prints, or throws.
  std::string printed(const launch::LaunchCommand& how) {
    launch::LaunchCommand command = how;
    command.recipe = (folder_ / "r.yaml").string();
    testing::internal::CaptureStdout();
    const auto error = thrown([&] { EXPECT_EQ(launch::run_launch(command), 0); });
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_TRUE(!error || text.empty()) << text;
    return error ? error->message() : text;
  }
};

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

TEST_F(DryRun, SaysHowToApplyAndWhoIsAskedInstead) {
  load(kDistillBase);
  expect_part(printed({.dry_run = true}), "is shown by: retort plan ");
  loaded({});
  const std::string apply =
      "retort launch " + (folder_ / "r.yaml").string() + " --dry-run | kubectl apply -f -";
  expect_part(printed({.overrides = pods()}), apply);
}

TEST_F(DryRun, AndSubmitAreOfOneBackendEach) {
  load(kDistillBase);
  const std::string submit = "--submit needs launch.backend: slurm; the recipe has ";
  expect_part(printed({.submit = true}), submit + "local");
  expect_part(printed({.overrides = pods(), .submit = true}), submit + "kubernetes");
  expect_part(printed({.overrides = {"launch.backend=slurm"}, .dry_run = true}),
              "is shown by: retort plan ");
}

TEST_F(DryRun, MakesASecretForEachRunUnlessThereIsOne) {
  loaded({});
  const launch::LaunchCommand command{.overrides = pods(), .dry_run = true};
  const auto secret_of = [&](const std::string& text) {
    const size_t begin = text.find("  secret: ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const std::string first = secret_of(printed(command));
  EXPECT_GT(first.size(), 32U);
  EXPECT_NE(secret_of(printed(command)), first);

  launch::LaunchCommand with_file = command;
  put(folder_ / "secret", "abcdefghijklmnopqrst\n");
  std::filesystem::permissions(folder_ / "secret", std::filesystem::perms::owner_read);
  with_file.overrides.push_back("launch.secret_file=" + (folder_ / "secret").string());
  const std::string text = printed(with_file);
  EXPECT_EQ(secret_of(text), "  secret: abcdefghijklmnopqrst");
  EXPECT_EQ(text.find((folder_ / "secret").string()), std::string::npos);
}

// Models of pods are not here.
TEST_F(DryRun, AsksForNoFileOfThePods) {
  loaded({"roles.teacher.model=/nowhere/teacher", "data.train.0.path=/nowhere/rows.jsonl"});
}

TEST_F(DryRun, FitsTheGracePeriod) {
  EXPECT_EQ(loaded({}).launch.stop_timeout, Duration(25'000));
  EXPECT_EQ(load(kDistillBase).launch.stop_timeout, Duration(120'000));
  const std::string grace = "launch.kubernetes.pod.terminationGracePeriodSeconds=";
  EXPECT_EQ(loaded({grace + "65", "launch.stop_timeout=1m"}).launch.stop_timeout, Duration(60'000));
  expect_part(message_of([&] { loaded({grace + "10"}); }), "at most 5s are the run's");
  expect_part(message_of([&] { loaded({grace + "soon"}); }),
              "launch.kubernetes.pod.terminationGracePeriodSeconds: expected an integer");
}

TEST_F(DryRun, RefusesWhatWouldHideARank) {
  const auto refusal = [&](const std::string& pod) {
    return message_of([&] { loaded({"launch.kubernetes.pod=" + pod}); });
  };
  expect_part(refusal("{hostNetwork: true}"), "launch.kubernetes.pod.hostNetwork: ");
  expect_part(refusal("{subdomain: a}"), "launch.kubernetes.pod.subdomain: the run needs first-");
  const auto variable = [&](const std::string& item) {
    return refusal("{containers: [{name: retort, env: [" + item + "]}]}");
  };
  expect_part(variable("{name: RETORT_RANK, value: '0'}"), "the Job says which rank a pod is");
  expect_part(variable("{name: RETORT_ROLE, value: x}"), ".value: the run needs student here");
  expect_part(variable("{name: RETORT_ROLE, valueFrom: {}}"), "the Job says which rank a pod is");
  loaded(
      {"launch.kubernetes.pod={containers: [{name: retort, env: [{name: RETORT_LOG, value: "
       "I}]}]}"});
}

}  // namespace
}  // namespace retort::test
