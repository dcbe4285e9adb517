#include "launch/status/terminal_text.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace retort::launch {

std::string cut_to_columns(std::string text, int columns) {
  int characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // A byte that goes on with a UTF-8 character takes no column of its own.
    if ((byte & 0xc0) == 0x80) continue;
    if (++characters > columns) return text.substr(0, i);
    // A control character would move the cursor away from the drawing.
    if (byte < 0x20 || byte == 0x7f) text[i] = '?';
  }
  return text;
}

std::string progress_bar(double fraction, int width) {
  const int full = std::clamp(static_cast<int>(std::lround(fraction * width)), 0, width);
  std::string text = "[";
  for (int i = 0; i < width; ++i)
    text += i < full ? "=" : i == full ? ">" : " ";
  return text + "]";
}

std::string short_time(std::chrono::seconds time) {
  const auto s = std::max<int64_t>(0, time.count());
  std::array<char, 48> buffer;
  if (s >= 3600)
    std::snprintf(buffer.data(), buffer.size(), "%dh%02dm", static_cast<int>(s / 3600),
                  static_cast<int>(s / 60 % 60));
  else if (s >= 60)
    std::snprintf(buffer.data(), buffer.size(), "%dm%02ds", static_cast<int>(s / 60),
                  static_cast<int>(s % 60));
  else
    std::snprintf(buffer.data(), buffer.size(), "%ds", static_cast<int>(s));
  return buffer.data();
}

int terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace retort::launch
