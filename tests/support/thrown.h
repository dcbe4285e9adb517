// What a call throws.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <source_location>
#include <string>

#include "base/error.h"

namespace retort::test {

// The Error that `call` throws, if it throws one. Other exceptions pass.
template <class F>
std::optional<Error> thrown(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// The Error that `call` throws. If it throws none the test fails, at the caller's line, and the
// result only says so.
template <class F>
Error error_of(F&& call, std::source_location caller = std::source_location::current()) {
  if (const std::optional<Error> error = thrown(call)) return *error;
  ADD_FAILURE_AT(caller.file_name(), static_cast<int>(caller.line())) << "nothing was thrown";
  return Error(ErrorCode::kRemote, "nothing was thrown");
}

// Its code; fails as error_of.
template <class F>
ErrorCode code_of(F&& call, std::source_location caller = std::source_location::current()) {
  return error_of(call, caller).code();
}

// Its message without context. The test fails as by error_of, and if the code is another one.
template <class F>
std::string message_of(F&& call, ErrorCode code = ErrorCode::kInvalidArgument,
                       std::source_location caller = std::source_location::current()) {
  const Error error = error_of(call, caller);
  if (error.code() != code)
    ADD_FAILURE_AT(caller.file_name(), static_cast<int>(caller.line()))
        << "expected " << to_string(code) << ": " << error.what();
  return error.message();
}

// `call` throws an Error with this code, and `part` stands in its message or context.
template <class F>
void expect_error(ErrorCode code, const std::string& part, F&& call,
                  std::source_location caller = std::source_location::current()) {
  const ::testing::ScopedTrace trace(caller.file_name(), static_cast<int>(caller.line()),
                                     "expected: " + part);
  const Error error = error_of(call, caller);
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
}

// The same with kInvalidArgument.
template <class F>
void expect_refused(const std::string& part, F&& call,
                    std::source_location caller = std::source_location::current()) {
  expect_error(ErrorCode::kInvalidArgument, part, call, caller);
}

}  // namespace retort::test
