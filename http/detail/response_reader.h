// Reads an answer from its bytes as they come, and refuses what a careful client does not take:
// what is no HTTP, encodings and types that nobody asked for, bodies beyond their limit, answers
// that are shorter or longer than they say.
//
// Use: put bytes into room(), add() them; add_end() where the stream ends. After `true` the answer
//   is complete: release(). Nothing may be called after an Error.
// Memory: what stands unread (128 KiB) and the body. Of an answer without a status 2xx, and of one
//   that will be refused, the first kKeptBytes of the body; then the answer counts as complete.
// Errors: kCorrupt, kMismatch, kResourceExhausted; what Request::on_body throws.
// Threads: one.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "http/detail/sink_body.h"
#include "http/message.h"

namespace retort::http::detail {

inline constexpr uint32_t kHeaderLimitBytes = 64 << 10;
inline constexpr size_t kKeptBytes = 64 << 10;

class ResponseReader {
 public:
  // `request` outlives the reader. `secret`: what no error may show, should the server repeat it.
  explicit ResponseReader(const Request& request, std::string secret = "");
  ResponseReader(const ResponseReader&) = delete;
  ResponseReader& operator=(const ResponseReader&) = delete;

  // Where the next bytes go; never empty.
  std::span<char> room();
  bool add(size_t bytes);
  bool add_end();

  bool started() const { return started_; }  // a byte has come
  // A byte has come that belongs to the answer itself, not to an interim one.
  bool begun() const { return parser_->got_some() || buffer_.size() > 0; }
  bool gave_body() const { return gave_body_; }  // on_body has taken some of it
  // After a complete answer: true if another may follow on the same connection.
  bool reusable() const;
  // How far it is, for errors: "after 3 of 17 bytes of its body".
  std::string progress() const;
  Response release();

 private:
  using Parser = boost::beast::http::response_parser<SinkBody>;

  void begin();  // also after an interim answer (1xx)
  bool parse_some();
  void check_header();
  void check_coding(boost::beast::http::field name, const std::string& allowed) const;
  void take_body(std::string_view bytes);
  bool finish();
  bool is_wanted() const;  // 2xx
  std::string header(boost::beast::http::field name) const;
  std::string_view unread() const;
  void refuse_tls() const;
  [[noreturn]] void refuse_end() const;
  [[noreturn]] void refuse(const boost::system::error_code& error) const;

  const Request& request_;
  const std::string secret_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  int num_interim_ = 0;
  bool started_ = false;
  bool header_checked_ = false;
  bool gave_body_ = false;
  bool cut_ = false;        // enough of a body that is only shown
  std::string wrong_type_;  // of the answer, if it is refused for it
  uint64_t body_bytes_ = 0;
  std::string body_;
};

}  // namespace retort::http::detail
