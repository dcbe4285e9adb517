// Which host this process runs on.
#pragma once

#include <string>

namespace retort {

// The host's name and the start of its boot id, which tells machines of one name apart.
std::string this_host();

}  // namespace retort
