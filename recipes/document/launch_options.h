// The `launch:` block: how the processes of a run are started and stopped.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/options.h"
#include "base/units.h"
#include "recipes/document/hosts_options.h"
#include "recipes/document/kubernetes_options.h"
#include "recipes/document/rendezvous_options.h"
#include "recipes/document/slurm_options.h"

namespace retort::recipes {

enum class Backend { kLocal, kSsh, kSlurm, kKubernetes };
enum class LauncherLost { kStop, kContinue };

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

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::Backend> {
  using E = retort::recipes::Backend;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"local", E::kLocal},
       {"ssh", E::kSsh},
       {"slurm", E::kSlurm},
       {"kubernetes", E::kKubernetes}}};
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
