#include "base/today.h"

#include <ctime>

namespace retort {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[sizeof "2026-11-23"];
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%d", &local);
  return {text, size};
}

}  // namespace retort
