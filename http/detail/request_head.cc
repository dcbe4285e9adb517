#include "http/detail/request_head.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "http/detail/quoted_text.h"

namespace retort::http::detail {
namespace {

constexpr std::string_view kOwnHeaders[] = {"Host", "Connection", "Content-Length",
                                            "Transfer-Encoding"};

bool is_name_character(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const bool digit = c >= '0' && c <= '9';
  return letter || digit || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_value_character(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '\t' || (byte >= 0x20 && byte != 0x7f);
}

void check(const Header& header) {
  const std::string& name = header.name;
  const std::string& value = header.value;
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_name_character))
    throw Error(ErrorCode::kInvalidArgument, "no header may be named " + shown(name));
  if (!std::all_of(value.begin(), value.end(), is_value_character))
    throw Error(ErrorCode::kInvalidArgument,
                "the value of the header " + name + " has a line break or a control character");
}

void append(std::string& head, const Header& header) {
  check(header);
  head += header.name + ": " + header.value + "\r\n";
}

}  // namespace

size_t body_bytes(const Request& request) {
  size_t bytes = 0;
  for (const Piece& piece : request.body)
    bytes += piece.bytes.size();
  return bytes;
}

std::string request_head(const Request& request, const Header& key) {
  for (const std::string_view own : kOwnHeaders)
    if (find_header(request.headers, own) != nullptr)
      throw Error(ErrorCode::kInvalidArgument,
                  "the client writes the header " + std::string(own) + " itself; leave it out");

  // White space would end the target within the request's first line.
  const std::string& target = request.url.target;
  if (target.empty() || !std::all_of(target.begin(), target.end(),
                                     [](char c) { return c != ' ' && is_value_character(c); }))
    throw Error(ErrorCode::kInvalidArgument, "the path of the address has white space");
  std::string head = std::string(to_string(request.method)) + " " + target +
                     " HTTP/1.1\r\nHost: " + request.url.host_header + "\r\n";
  const auto append_default = [&](const std::string& name, const std::string& value) {
    if (find_header(request.headers, name) == nullptr) append(head, {name, value});
  };
  append_default("User-Agent", "retort");
  append_default("Accept", request.expected_type.empty() ? "*/*" : request.expected_type);
  append_default("Accept-Encoding", request.accept_encoding);
  if (!key.name.empty()) append_default(key.name, key.value);

  // A length of 0 is said where a body is usual, as servers wait for one otherwise.
  const size_t bytes = body_bytes(request);
  const bool usual = request.method == Method::kPost || request.method == Method::kPut;
  if (bytes > 0) append_default("Content-Type", request.content_type);
  if (bytes > 0 || usual) append(head, {"Content-Length", std::to_string(bytes)});
  for (const Header& header : request.headers)
    append(head, header);
  return head + "\r\n";
}

}  // namespace retort::http::detail
