// A stamp of the files that a frozen role was loaded from.
#pragma once

#include <filesystem>
#include <string>

namespace retort::roles {

// Changes when a file of the model does, without reading all of it: TeacherInfo::files. "" for no
// folder.
std::string stamp_of_model(const std::filesystem::path& folder);

}  // namespace retort::roles
