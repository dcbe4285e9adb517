// The check that all options of losses share.
#pragma once

#include <string>

namespace retort::losses::detail {

// kInvalidArgument unless `ok`: the field, what it must be, and with which value it came.
void check_option(bool ok, const char* field, const std::string& expected, double value);

}  // namespace retort::losses::detail
