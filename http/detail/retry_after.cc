#include "http/detail/retry_after.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>

namespace retort::http::detail {
namespace {

using std::chrono::system_clock;

constexpr int64_t kMaxSeconds = int64_t{1} << 31;
constexpr std::array<std::string_view, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "Sun, 06 Nov 1994 08:49:37 GMT", the one form that may still be written.
std::optional<std::chrono::sys_seconds> parse_date(const std::string& text) {
  char month[4] = "";
  std::tm parts{};
  int read = -1;
  std::sscanf(text.c_str(), "%*3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d GMT%n", &parts.tm_mday,
              month, &parts.tm_year, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &read);
  const auto found = std::find(kMonths.begin(), kMonths.end(), month);
  if (read != static_cast<int>(text.size()) || found == kMonths.end()) return std::nullopt;

  parts.tm_year -= 1900;
  parts.tm_mon = static_cast<int>(found - kMonths.begin());
  return std::chrono::sys_seconds(std::chrono::seconds(timegm(&parts)));
}

}  // namespace

std::optional<Duration> retry_after(const Headers& headers, system_clock::time_point now) {
  const std::string* text = find_header(headers, "Retry-After");
  if (text == nullptr) return std::nullopt;
  if (is_number(*text)) {
    const bool readable = text->size() <= 10;
    const int64_t seconds =
        readable ? std::min<int64_t>(std::stoll(*text), kMaxSeconds) : kMaxSeconds;
    return std::chrono::seconds(seconds);
  }

  const auto until = parse_date(*text);
  if (!until) return std::nullopt;
  // The time runs from the Date of the server, so that a difference of the clocks does not matter.
  const std::string* date = find_header(headers, "Date");
  const auto here = std::chrono::floor<std::chrono::seconds>(now);
  const auto from = date != nullptr ? parse_date(*date).value_or(here) : here;
  // This is counted in seconds, because the year 9999 in nanoseconds does not fit.
  const int64_t seconds = (*until - from).count();
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kMaxSeconds));
}

Duration pause_before(std::optional<Duration> asked, const Patience& patience, int num_pauses,
                      double jitter) {
  const auto part = [](Duration whole, double factor) {
    return Duration(static_cast<int64_t>(static_cast<double>(whole.count()) * factor));
  };
  // The jitter only adds to what the server asked for, so that clients do not all come back at
  // once.
  if (asked && asked->count() > 0) return *asked + part(patience.first_pause, jitter);

  Duration pause = patience.first_pause;
  for (int i = 0; i < num_pauses && pause < patience.longest_pause; ++i)
    pause *= 2;
  return part(std::min(pause, patience.longest_pause), 0.5 + jitter / 2);
}

}  // namespace retort::http::detail
