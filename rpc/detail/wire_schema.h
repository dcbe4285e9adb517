// What two processes must have in common before they speak; their proof compares it.
#pragma once

#include <string>

namespace retort::rpc::detail {

// Frames, envelope and errors as their types say it, beside what no type shows. The methods are
// apart: each call compares its own (Envelope::schema).
std::string wire_format();
// The same, of this release.
std::string wire_schema();

}  // namespace retort::rpc::detail
