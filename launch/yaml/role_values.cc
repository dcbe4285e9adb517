#include "launch/yaml/role_values.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/private_file.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// Takes the text up to the next NUL, and the NUL too.
std::string take_text(std::string_view& rest, const fs::path& file) {
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos)
    throw Error(ErrorCode::kCorrupt,
                file.string() + " is cut short; start the run from its recipe, with --resume");
  std::string text(rest.substr(0, end));
  rest.remove_prefix(end + 1);
  return text;
}

const std::string* known_value(const RoleValues& known, const std::string& role,
                               const std::string& name) {
  const auto values = known.find(role);
  if (values == known.end()) return nullptr;
  const auto value = values->second.find(name);
  return value == values->second.end() ? nullptr : &value->second;
}

// "": a recipe that no launcher has written has none.
fs::path values_beside(const fs::path& recipe_file) {
  const fs::path folder = recipe_file.parent_path();
  if (recipe_file.filename() == kResolvedRecipe) return folder / kRoleValues;
  if (recipe_file.filename() == kSubmittedRecipe) return folder / kSubmittedValues;
  return {};
}

// Gives a variable that has no value the known one; true if it had none.
bool fill(YamlNode::Entry& variable, const std::string& role, const RoleValues& known,
          bool needed) {
  YamlNode& node = variable.value;
  if (node.kind != YamlNode::Kind::kNull) return false;
  const std::string* value = known_value(known, role, variable.key);
  const char* own = std::getenv(variable.key.c_str());
  if (value == nullptr && own == nullptr && needed)
    throw Error(ErrorCode::kInvalidArgument,
                variable.place.prefix() + "roles." + role + ".env." + variable.key +
                    ": null means the value that " + variable.key +
                    " has here, and it is not set; export it or write the value");

  node.kind = YamlNode::Kind::kScalar;
  node.quoted = true;
  node.scalar = value != nullptr ? *value : own != nullptr ? own : "";
  return true;
}

}  // namespace

RoleValues role_values(const recipes::Recipe& recipe) {
  RoleValues values;
  for (const auto& [name, role] : recipe.roles)
    for (const auto& [variable, value] : role.env)
      if (!role.env_elsewhere.contains(variable)) values[name][variable] = value;
  return values;
}

void write_role_values(const fs::path& recipe_file, const RoleValues& values) {
  std::string text;
  for (const auto& [role, variables] : values)
    for (const auto& [name, value] : variables)
      for (const std::string& part : {role, name, value})
        text.append(part).push_back('\0');

  const fs::path file = values_beside(recipe_file);
  RETORT_CHECK(!file.empty()) << recipe_file << " has no file of values";
  if (!text.empty()) return write_private_file(file, text);
  std::error_code missing;
  fs::remove(file, missing);
}

std::optional<RoleValues> read_role_values(const fs::path& recipe_file) {
  const fs::path file = values_beside(recipe_file);
  if (file.empty() || !fs::exists(file)) return std::nullopt;
  RoleValues values;
  const std::string text = read_own_private_file(file);
  for (std::string_view rest = text; !rest.empty();) {
    const std::string role = take_text(rest, file);
    const std::string name = take_text(rest, file);
    values[role][name] = take_text(rest, file);
  }
  return values;
}

bool has_role_values(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  const std::string key = assignment.substr(0, equals);
  if (equals == std::string::npos || !(key == "roles" || key.starts_with("roles."))) return false;
  // roles.student.env.A=, roles.student.env=, or a block with env in it.
  const bool names_env = key.find(".env.") != std::string::npos || key.ends_with(".env");
  const bool holds_env =
      std::ranges::count(key, '.') < 2 && assignment.find("env", equals) != std::string::npos;
  return names_env || holds_env;
}

RoleValues fill_role_values(YamlNode& recipe, const RoleValues& known, bool needed) {
  RoleValues elsewhere;
  auto* roles = recipe.find("roles");
  if (roles == nullptr) return elsewhere;
  for (YamlNode::Entry& role : roles->value.entries)
    if (auto* env = role.value.find("env"))
      for (YamlNode::Entry& variable : env->value.entries)
        if (fill(variable, role.key, known, needed) && !needed)
          elsewhere[role.key][variable.key] = variable.value.scalar;
  return elsewhere;
}

}  // namespace retort::launch
