// The files and folders that a run reads, and what tells whether two hosts see the same ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/doctor/checks.h"

namespace retort::launch::doctor {

// Of a file: its size and the beginning of its content. Of a folder: names and sizes of the files
// in it, and the beginning of each. Alike where two hosts see the same, without reading all of it;
// "" if it is not there.
std::string path_print(const std::string& path);
// The prints of the paths that the ranks on this host read.
std::map<std::string, std::string> path_prints(const HostShare& share);

// A problem for each path that hosts see differently; one line where all have all, and the same.
// `prints`: of each host by its name.
std::vector<Finding> compare_prints(
    const std::map<std::string, std::map<std::string, std::string>>& prints);

}  // namespace retort::launch::doctor
