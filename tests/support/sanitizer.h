// Whether this test is built with a sanitizer (`./dev sanitize`), for the few that must know.
#pragma once

namespace retort::test {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
constexpr int kSlowness = 4;
#elif defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
constexpr int kSlowness = 10;
#else
constexpr bool kSanitized = false;
constexpr int kSlowness = 1;  // by how much a deadline that only bounds a hang is longer
#endif

}  // namespace retort::test
