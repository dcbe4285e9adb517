// Server-sent events: an answer that comes as it is made (text/event-stream).
//
//   event: delta                 <- Event::type
//   data: {"text": "a",          <- lines of data are joined with \n
//   data:  "index": 0}
//   : a comment, to keep the connection open
//                                <- a blank line ends the event
//   data: [DONE]                 <- ends the stream
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/future.h"
#include "http/client.h"

namespace retort::http {

struct Event {
  std::string type;  // "" where the stream does not say
  std::string data;
};

struct EventOptions {
  // The data of the event that ends the stream, which is not handed on; what comes without it, or
  // after it, is an error. Empty: the stream ends with the answer.
  std::string end = "[DONE]";
  // of one event with its lines
  uint64_t event_bytes = uint64_t{8} << 20;
};

// Takes a stream apart, however it is cut (WHATWG HTML, 9.2.6; `id` and `retry` mean nothing here).
// Errors: kCorrupt, kResourceExhausted; what `on_event` throws. Nothing may be called after one.
// Threads: one.
class EventReader {
 public:
  using Handler = std::function<void(const Event&)>;
  explicit EventReader(Handler on_event, EventOptions options = {});

  void feed(std::string_view bytes);
  // Once all bytes are in: kCorrupt for an event that did not end, or a stream without its end.
  void finish() const;
  bool done() const { return done_; }  // the end was seen

 private:
  void take_line();
  void dispatch();

  const Handler on_event_;
  const EventOptions options_;
  std::string line_;
  Event event_;
  bool has_data_ = false;
  bool first_line_ = true;
  bool after_return_ = false;  // a \n that follows belongs to the line that ended
  bool done_ = false;
};

// Sends a request that is answered by events. The future has the answer without its body once the
// stream is complete. `on_event` is as Request::on_body, which is set here, as is expected_type.
Future<Response> send_for_events(Client& client, Request request, Deadline deadline,
                                 EventReader::Handler on_event, EventOptions options = {});

}  // namespace retort::http
