// Reads what an error of http::Client says of the answer that it is about.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace retort::engines {

// The status of the answer; 0: there was none.
int status_of(const Error& error);

// The number right after the first `before`, where one stands and is not negative.
std::optional<int64_t> number_after(std::string_view text, std::string_view before);

// The same error as `code`, with what a user can do about it in front.
Error with_advice(const Error& error, ErrorCode code, const std::string& advice);

}  // namespace retort::engines
