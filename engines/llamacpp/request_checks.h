// Refuses a caller's request that is wrong before the server sees it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engines/contract/engine.h"

namespace retort::engines::llamacpp {

[[noreturn]] void refuse_request(const std::string& what);  // kInvalidArgument

// kInvalidArgument naming the field. `vocab_rows`: of the server's model.
void check_request(const DrawRequest& request, int64_t vocab_rows);
void check_request(const ScoreRequest& request, int64_t vocab_rows);

}  // namespace retort::engines::llamacpp
