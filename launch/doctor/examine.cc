// All checks of one host.
#include <functional>
#include <numeric>

#include "base/error.h"
#include "launch/doctor/checks.h"

namespace retort::launch::doctor {
namespace {

struct NamedCheck {
  const char* name;
  std::optional<Finding> (*run)(const HostShare&);
};

constexpr NamedCheck kChecks[] = {
    {"program", check_program},
    {"cores", check_cores},
    {"memory", check_memory},
    {"shared memory", check_shared_memory},
    {"descriptors", check_descriptors},
    {"locked memory", check_locked_memory},
    {"devices", check_devices},
    {"address", check_address},
    {"ports", check_ports},
    {"launcher's ports", check_launcher_ports},
    {"output_dir", check_output_folder},
    {"disk", check_disk},
    {"lock", check_lock},
    {"leftovers", check_leftovers},
    {"inputs", check_inputs},
};

// A check that cannot be made has found a problem by that.
std::optional<Finding> run_check(const NamedCheck& check, const HostShare& share) {
  try {
    return check.run(share);
  } catch (const std::exception& error) {
    return problem(error.what(), "correct that first; the check could not be made");
  }
}

}  // namespace

int64_t HostShare::num_ranks() const {
  return std::accumulate(ranks.begin(), ranks.end(), int64_t{0},
                         [](int64_t sum, const auto& role) { return sum + role.second; });
}

bool HostShare::uses_devices() const {
  for (const auto& [role, count] : ranks)
    if (count > 0 && recipe->roles.at(role).world.device == parallel::Device::kCuda) return true;
  return false;
}

std::vector<Finding> examine(const HostShare& share, const std::string& host) {
  std::vector<Finding> findings;
  const auto add = [&](Finding finding, const char* check) {
    finding.host = host;
    finding.check = check;
    findings.push_back(std::move(finding));
  };
  for (const NamedCheck& check : kChecks)
    if (auto finding = run_check(check, share)) add(std::move(*finding), check.name);
  for (Finding& finding : check_engines(share))
    add(std::move(finding), "engine");
  for (Finding& finding : check_environments(share))
    add(std::move(finding), "environment");
  return findings;
}

}  // namespace retort::launch::doctor
