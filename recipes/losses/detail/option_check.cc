#include "recipes/losses/detail/option_check.h"

#include "base/error.h"

namespace retort::losses::detail {

void check_option(bool ok, const char* field, const std::string& expected, double value) {
  if (ok) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(field) + " " + expected).with(field, value);
}

}  // namespace retort::losses::detail
