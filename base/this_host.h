// Which host this process runs on.
#pragma once

#include <string>

namespace retort {

// The host's name and the start of its boot id, which tells machines of one name apart.
std::string this_host();

// What the system has made up when it started: the same for all containers and namespaces of a
// machine, whatever names they have.
std::string boot_id();

}  // namespace retort
