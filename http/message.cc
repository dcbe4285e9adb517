#include "http/message.h"

#include <algorithm>

#include "base/error.h"

namespace retort::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::string_view to_string(Method method) {
  switch (method) {
    case Method::kGet: return "GET";
    case Method::kPost: return "POST";
    case Method::kPut: return "PUT";
    case Method::kDelete: return "DELETE";
  }
  RETORT_CHECK(false) << "no method";
  return "";
}

const std::string* find_header(const Headers& headers, std::string_view name) {
  for (const Header& header : headers)
    if (equal_names(header.name, name)) return &header.value;
  return nullptr;
}

Piece piece_of(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  return {*owner, owner};
}

}  // namespace retort::http
