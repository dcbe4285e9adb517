#include "http/events.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "http/detail/quoted_text.h"

namespace retort::http {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

EventReader::EventReader(Handler on_event, EventOptions options)
    : on_event_(std::move(on_event)), options_(std::move(options)) {}

// Lines end with \n, \r or \r\n, which two pieces may share.
void EventReader::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') bytes.remove_prefix(1);
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + event_.data.size() > options_.event_bytes)
      throw Error(ErrorCode::kResourceExhausted,
                  "an event of the stream is longer than the limit of " +
                      std::to_string(options_.event_bytes) +
                      " bytes; raise EventOptions::event_bytes");
    if (end == std::string_view::npos) return;

    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    take_line();
    line_.clear();
  }
}

void EventReader::take_line() {
  if (std::exchange(first_line_, false) && line_.starts_with(kByteOrderMark))
    line_.erase(0, kByteOrderMark.size());
  if (line_.empty()) return dispatch();

  // "name: value", "name:value" or "name"; a comment has an empty name.
  const size_t colon = line_.find(':');
  const std::string_view line = line_;
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == std::string::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "event") event_.type = value;
  if (name != "data") return;
  if (std::exchange(has_data_, true)) event_.data += '\n';
  event_.data += value;
}

void EventReader::dispatch() {
  const Event event = std::exchange(event_, {});
  // By the rules of server-sent events an event without data is none.
  if (!std::exchange(has_data_, false)) return;
  if (done_)
    throw Error(ErrorCode::kCorrupt, "the stream goes on after its end " +
                                         detail::shown(options_.end) + ": " +
                                         detail::shown(event.data));
  done_ = !options_.end.empty() && event.data == options_.end;
  if (!done_) on_event_(event);
}

void EventReader::finish() const {
  if (has_data_ || !line_.empty())
    throw Error(ErrorCode::kCorrupt, "the stream ends within an event: " +
                                         detail::shown(has_data_ ? event_.data : line_));
  if (!done_ && !options_.end.empty())
    throw Error(ErrorCode::kCorrupt, "the stream ends without " + detail::shown(options_.end) +
                                         "; the server broke off, see its log");
}

Future<Response> send_for_events(Client& client, Request request, Deadline deadline,
                                 EventReader::Handler on_event, EventOptions options) {
  const auto reader = std::make_shared<EventReader>(std::move(on_event), std::move(options));
  request.expected_type = "text/event-stream";
  request.on_body = [reader](std::string_view bytes) { reader->feed(bytes); };
  const std::string url = request.url.shown();
  return client.send(std::move(request), deadline).then([reader, url](Response response) {
    try {
      reader->finish();
    } catch (const Error& error) {
      throw error.with("url", url);
    }
    return response;
  });
}

}  // namespace retort::http
