// This machine's name.
#pragma once

#include <string>

namespace retort {

// As logs, status.json and messages give it; "" if the system does not say.
std::string host_name();

}  // namespace retort
