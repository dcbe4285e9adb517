// The checks of `retort doctor`, each of one thing, on the host that it runs on.
//
// A check reads, and changes nothing that stays. It returns nullopt where there is nothing to look
// at, and may throw an Error, which then is the problem that it found. None of them takes longer
// than seconds (engines: ten, all addresses at once).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/doctor/finding.h"
#include "recipes/document/recipe.h"

namespace retort::launch::doctor {

// What a host has of a run.
struct HostShare {
  const recipes::Recipe* recipe = nullptr;  // null: no run; what holds of any
  std::map<std::string, int64_t> ranks;     // role -> how many of its ranks are on this host
  std::string bind = "auto";                // where they listen, in the words of rpc.bind
  std::string rendezvous = "127.0.0.1";     // where the run meets, as its processes know it
  bool launches = true;                     // the launcher runs here, with the run's own folder

  int64_t num_ranks() const;
  bool uses_devices() const;
};

// The machine: machine.cc.
std::optional<Finding> check_program(const HostShare& share);
std::optional<Finding> check_cores(const HostShare& share);
std::optional<Finding> check_memory(const HostShare& share);
std::optional<Finding> check_shared_memory(const HostShare& share);
// Limits of a process, and devices: limits.cc, devices.cc.
std::optional<Finding> check_descriptors(const HostShare& share);
std::optional<Finding> check_locked_memory(const HostShare& share);
std::optional<Finding> check_devices(const HostShare& share);
// network.cc
std::optional<Finding> check_address(const HostShare& share);
std::optional<Finding> check_ports(const HostShare& share);
std::optional<Finding> check_launcher_ports(const HostShare& share);
// The run's folder: run_folder_checks.cc. The doctor's host alone, but for leftovers.
std::optional<Finding> check_output_folder(const HostShare& share);
std::optional<Finding> check_disk(const HostShare& share);
std::optional<Finding> check_lock(const HostShare& share);
std::optional<Finding> check_leftovers(const HostShare& share);
// Files and services: inputs.cc, engine_checks.cc.
std::optional<Finding> check_inputs(const HostShare& share);
std::vector<Finding> check_engines(const HostShare& share);
// environment_checks.cc
std::vector<Finding> check_environments(const HostShare& share);

// Makes all checks; each finding has the host's name.
std::vector<Finding> examine(const HostShare& share, const std::string& host);

// What a process of the run needs at most, by formula: 64 of its own, four for each session with a
// process of another role (control, two data connections, and what the channel `cma` opens beside
// them), and one for each other rank of its role. A launcher: 64, and six for each process.
int64_t descriptors_needed(const recipes::Recipe& recipe);
// The bytes of one checkpoint: weights, and Adam's state
// (recipes/run/checkpoints/checkpoint_store.h).
int64_t checkpoint_bytes(const recipes::Recipe& recipe);

// The nearest folder above `path`, or itself, that exists.
std::filesystem::path nearest_folder(const std::filesystem::path& path);
// "1.5 GiB"
std::string shown_bytes(double bytes);

}  // namespace retort::launch::doctor
