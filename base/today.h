// The day on this host's calendar.
#pragma once

#include <string>

namespace retort {

// "2026-11-23", in the host's time zone.
std::string today();

}  // namespace retort
