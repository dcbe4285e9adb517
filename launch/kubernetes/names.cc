#include "launch/kubernetes/names.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/hash.h"
#include "launch/yaml/writer.h"

namespace retort::launch {
namespace {
namespace fs = std::filesystem;

// run: 24 + '-' + 10; '-' + role: 16 more; '-' + index: 63 at most, with indices of ten digits.
constexpr size_t kLongestRun = 24, kHash = 10, kLongestRole = 16;

// The hash, 40 bits of it, is of what makes the run this one and no other.
std::string run_name(const recipes::Recipe& recipe) {
  const fs::path folder = fs::path(recipe.output_dir).lexically_normal();
  const std::string path = folder.has_filename() ? folder.string() : folder.parent_path().string();
  const auto* volume = recipe.launch.kubernetes.volume_of(path);
  const std::string storage =
      volume == nullptr ? "" : volume->path + " " + volume->claim.value_or(volume->source.flow);

  // A Service's name begins with a letter.
  std::string name = dns_label(fs::path(path).filename().string(), kLongestRun);
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())))
    name = dns_label("run-" + name, kLongestRun);
  return name + "-" + sha256_hex(path + "\n" + storage).substr(0, kHash);
}

}  // namespace

std::string KubernetesNames::rendezvous() const {
  return jobs.at(recipes::Recipe::kDrivingRole) + "-0." + run;
}

std::string dns_label(const std::string& text, size_t longest) {
  std::string label;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_kept = byte < 0x80 && std::isalnum(byte);
    if (is_kept)
      label += static_cast<char>(std::tolower(byte));
    else if (!label.empty() && label.back() != '-')
      label += '-';
  }
  label.resize(std::min(label.size(), longest));
  while (label.ends_with('-'))
    label.pop_back();
  return label;
}

KubernetesNames kubernetes_names(const recipes::Recipe& recipe) {
  KubernetesNames names{.run = run_name(recipe), .jobs = {}};
  std::set<std::string> taken;
  const auto add = [&](const std::string& role) {
    std::string label = dns_label(role, kLongestRole);
    if (label.empty()) label = "role";
    for (int number = 2; !taken.insert(label).second; ++number) {
      const std::string end = "-" + std::to_string(number);
      label = dns_label(role, kLongestRole - end.size()) + end;
    }
    names.jobs[role] = names.run + "-" + label;
  };
  // The student's label is chosen first, so that the host where the run meets is called the same
  // whatever the other roles are.
  add(recipes::Recipe::kDrivingRole);
  for (const auto& [role, options] : recipe.roles)
    if (role != recipes::Recipe::kDrivingRole) add(role);
  return names;
}

}  // namespace retort::launch
