// Casts between the integers that sizes come in: size_t of the standard library, int64_t of tensors
// and options, int of c10d's ranks. Debug builds check that the value fits. The size of a container
// as int64_t is std::ssize(container), which needs no cast.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace retort {

namespace detail {
template <std::integral To, std::integral From>
To fitting_cast(From value) {
#ifndef NDEBUG
  RETORT_CHECK(std::in_range<To>(value)) << value << " does not fit";
#endif
  return static_cast<To>(value);
}
}  // namespace detail

template <std::integral From>
size_t to_size(From value) {
  return detail::fitting_cast<size_t>(value);
}
template <std::integral From>
int64_t to_int64(From value) {
  return detail::fitting_cast<int64_t>(value);
}
template <std::integral From>
int to_int(From value) {
  return detail::fitting_cast<int>(value);
}

}  // namespace retort
