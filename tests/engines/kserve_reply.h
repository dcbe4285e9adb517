// Answers as a KServe server sends them.
#pragma once

#include <string>
#include <string_view>

#include "tests/engines/kserve_recorded.h"

namespace retort::engines::kserve {

// `header_length`: of the JSON before binary tensors; empty: it has none.
inline std::string reply_with(int status, std::string_view type, std::string_view header_length,
                              std::string_view body) {
  std::string text = "HTTP/1.1 " + std::to_string(status) +
                     " Said\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\nContent-Type: " + std::string(type);
  if (!header_length.empty())
    text += "\r\nInference-Header-Content-Length: " + std::string(header_length);
  return text + "\r\n\r\n" + std::string(body);
}
inline std::string reply_with(const recorded::Answer& answer) {
  return reply_with(answer.status, answer.type, answer.header_length, answer.body);
}

}  // namespace retort::engines::kserve
