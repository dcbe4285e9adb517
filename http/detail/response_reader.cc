#include "http/detail/response_reader.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "http/detail/quoted_text.h"

namespace retort::http::detail {
namespace {

namespace protocol = boost::beast::http;
using boost::system::error_code;

constexpr size_t kRoomBytes = 64 << 10;
constexpr size_t kMaxUnreadBytes = kHeaderLimitBytes + kRoomBytes;
constexpr size_t kMaxShownBytes = 1 << 10;
constexpr int kMaxInterim = 16;

// Returns "text/html" for " Text/HTML; charset=utf-8".
std::string first_word(std::string text) {
  text.resize(std::min(text.find(';'), text.size()));
  std::erase_if(text, [](char c) { return c == ' ' || c == '\t'; });
  for (char& c : text)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// True if `name` is one of the words of "gzip, br;q=0.5".
bool lists(const std::string& words, const std::string& name) {
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(',', begin), words.size());
    if (first_word(words.substr(begin, end - begin)) == name) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

ResponseReader::ResponseReader(const Request& request, std::string secret)
    : request_(request), secret_(std::move(secret)), buffer_(kMaxUnreadBytes) {
  begin();
}

void ResponseReader::begin() {
  parser_.emplace();
  parser_->header_limit(kHeaderLimitBytes);
  parser_->body_limit(boost::none);  // take_body() counts, and says what is wrong
  parser_->get().body() = [this](std::string_view bytes) { take_body(bytes); };
  header_checked_ = false;
}

std::span<char> ResponseReader::room() {
  const auto free = buffer_.prepare(std::min(kRoomBytes, kMaxUnreadBytes - buffer_.size()));
  return {static_cast<char*>(free.data()), free.size()};
}

bool ResponseReader::add(size_t bytes) {
  buffer_.commit(bytes);
  started_ = started_ || bytes > 0;
  while (buffer_.size() > 0 && parse_some()) {
    if (cut_) return finish();
    if (!parser_->is_done()) continue;
    if (parser_->get().result_int() / 100 != 1) return finish();

    // 100 and 103 say that the answer will come.
    if (++num_interim_ > kMaxInterim)
      throw Error(ErrorCode::kCorrupt, "the server sends interim answers (1xx) without end");
    begin();
  }
  return false;
}

// Parses one step. False if that needs more bytes.
bool ResponseReader::parse_some() {
  error_code error;
  buffer_.consume(parser_->put(buffer_.data(), error));
  if (error == protocol::error::need_more) {
    if (buffer_.size() < kMaxUnreadBytes) return false;
    error = protocol::error::header_limit;
  }
  if (error) refuse(error);
  if (parser_->is_header_done() && !header_checked_) check_header();
  return true;
}

bool ResponseReader::add_end() {
  error_code error = protocol::error::partial_message;
  if (parser_->got_some()) parser_->put_eof(error);
  if (error == protocol::error::partial_message) refuse_end();
  if (error) refuse(error);
  return finish();
}

std::string_view ResponseReader::unread() const {
  return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
}

// Throws if the answer is an alert of TLS, which a server under TLS may send to a plain request.
void ResponseReader::refuse_tls() const {
  if (unread().starts_with("\x15\x03"))
    throw Error(ErrorCode::kMismatch, "the server speaks TLS; write https:// in its address");
}

void ResponseReader::refuse_end() const {
  if (!parser_->is_header_done()) refuse_tls();
  const bool in_body = parser_->is_header_done();
  throw Error(ErrorCode::kCorrupt, "the answer ends too early, " + progress() +
                                       "; the server or a proxy broke off" +
                                       (in_body ? "" : ": " + shown(unread(), secret_)));
}

void ResponseReader::refuse(const error_code& error) const {
  if (error == protocol::error::header_limit)
    throw Error(ErrorCode::kCorrupt, "a header of the answer has more than " +
                                         std::to_string(kHeaderLimitBytes >> 10) + " KiB");
  if (parser_->is_header_done())
    throw Error(ErrorCode::kCorrupt, "the answer breaks the rules of HTTP (" + error.message() +
                                         ") " + progress() + ", at " + shown(unread(), secret_));
  refuse_tls();
  throw Error(ErrorCode::kCorrupt, "the answer is no HTTP/1.1 (" + error.message() +
                                       "); is this the port of the service? " +
                                       shown(unread(), secret_));
}

void ResponseReader::check_header() {
  header_checked_ = true;
  parser_->eager(true);
  if (parser_->get().result_int() / 100 == 1) return;
  check_coding(protocol::field::transfer_encoding, "chunked");
  if (!is_wanted()) return;
  check_coding(protocol::field::content_encoding, request_.accept_encoding + ", identity");

  // Another type is shown in the error; a login page of a proxy explains itself.
  const std::string type = first_word(header(protocol::field::content_type));
  const bool checked = !request_.expected_type.empty() && !type.empty();
  if (checked && type != first_word(request_.expected_type)) {
    wrong_type_ = type;
    return;
  }

  // A body that is too large is refused before its first byte is read.
  const auto announced = parser_->content_length();
  if (!announced) return;
  if (*announced > request_.limits.body_bytes)
    throw Error(ErrorCode::kResourceExhausted,
                "the answer announces a body of " + std::to_string(*announced) +
                    " bytes, above the limit of " + std::to_string(request_.limits.body_bytes) +
                    "; " + request_.limits.body_advice);
  if (!request_.on_body) body_.reserve(*announced);
}

void ResponseReader::check_coding(protocol::field name, const std::string& allowed) const {
  const std::string coding = header(name);
  if (coding.empty() || lists(allowed, first_word(coding))) return;
  throw Error(ErrorCode::kMismatch, "the answer has " + std::string(protocol::to_string(name)) +
                                        " " + shown(coding, secret_) +
                                        ", which was not asked for; expected " + allowed +
                                        "; switch it off at the server or the proxy before it");
}

void ResponseReader::take_body(std::string_view bytes) {
  body_bytes_ += bytes.size();
  // An answer that is not 2xx, or of a wrong type, is kept in part only, and then counts as
  // complete.
  if (!is_wanted() || !wrong_type_.empty()) {
    const size_t limit = is_wanted() ? kMaxShownBytes : kKeptBytes;
    body_ += bytes.substr(0, limit - body_.size());
    cut_ = body_.size() == limit;
    return;
  }

  if (body_bytes_ > request_.limits.body_bytes)
    throw Error(ErrorCode::kResourceExhausted,
                "the body of the answer is longer than the limit of " +
                    std::to_string(request_.limits.body_bytes) + " bytes; " +
                    request_.limits.body_advice);
  if (!request_.on_body) {
    body_ += bytes;
    return;
  }
  gave_body_ = true;
  request_.on_body(bytes);
}

bool ResponseReader::finish() {
  if (!wrong_type_.empty())
    throw Error(ErrorCode::kMismatch,
                "the answer is " + shown(wrong_type_) + ", expected " + request_.expected_type +
                    "; is this the address of the service? " + shown(body_, secret_));
  if (!cut_ && buffer_.size() > 0)
    throw Error(ErrorCode::kCorrupt,
                std::to_string(buffer_.size()) +
                    " bytes follow the end of the answer; its Content-Length is wrong");
  return true;
}

bool ResponseReader::is_wanted() const { return parser_->get().result_int() / 100 == 2; }

bool ResponseReader::reusable() const { return !cut_ && parser_->keep_alive(); }

std::string ResponseReader::header(protocol::field name) const {
  return std::string(parser_->get()[name]);
}

std::string ResponseReader::progress() const {
  if (!parser_->is_header_done()) return started_ ? "within its header" : "before its first byte";
  const auto announced = parser_->content_length();
  return "after " + std::to_string(body_bytes_) +
         (announced ? " of " + std::to_string(*announced) : std::string()) + " bytes of its body";
}

Response ResponseReader::release() {
  Response response{.status = static_cast<int>(parser_->get().result_int())};
  for (const auto& field : parser_->get())
    response.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  response.body = std::move(body_);
  return response;
}

}  // namespace retort::http::detail
