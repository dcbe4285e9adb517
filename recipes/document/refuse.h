// validate() of a block says by this what is wrong with it.
#pragma once

#include <string>

#include "base/error.h"

namespace retort::recipes {

// kInvalidArgument. Whoever reads the block puts its file and line before the message.
[[noreturn]] inline void refuse_option(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace retort::recipes
