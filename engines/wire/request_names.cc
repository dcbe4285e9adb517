#include "engines/wire/request_names.h"

#include <cinttypes>
#include <cstdio>
#include <random>

namespace retort::engines {
namespace {

std::string random_prefix() {
  std::random_device device;
  const uint64_t bits = (uint64_t{device()} << 32) | device();
  char text[40];
  std::snprintf(text, sizeof text, "retort-%016" PRIx64 "-", bits);
  return text;
}

}  // namespace

RequestNames::RequestNames() : prefix_(random_prefix()) {}

}  // namespace retort::engines
