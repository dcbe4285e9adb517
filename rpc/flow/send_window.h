// The sender's end of flow control: large messages leave in the order in which they came, as far as
// the receiver has granted room (receive_budget.h).
//
// Both sides count bytes since the session began, so a grant is a limit that only rises: "so many
// bytes in all may be sent". A sender that needs more asks for the limit it needs; a receiver that
// is short asks for what is unused back.
// Threads: the loop thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

namespace retort::rpc::detail {

class SendWindow {
 public:
  using Send = std::function<void()>;
  // Tells the receiver which limit the first message in line needs; what was sent, if none waits.
  using Ask = std::function<void(uint64_t limit)>;

  explicit SendWindow(Ask ask) : ask_(std::move(ask)) {}

  // Runs `send` now, inside the call, or when there is room. `id` is for remove().
  void push(uint64_t id, uint64_t bytes, Send send);
  // Takes a message out of the line. False if it was sent or never there.
  bool remove(uint64_t id);

  // True if it is in the line.
  bool waits(uint64_t id) const;

  // A grant. kCorrupt if it is lower than before.
  void raise(uint64_t limit);
  // The receiver wants back what is above `limit`. `answer` is told the limit that holds now, at
  // least what was sent, before anything else is asked.
  void lower(uint64_t limit, const std::function<void(uint64_t limit)>& answer);

  // Whoever waits is forgotten.
  void clear() { line_.clear(); }

  size_t num_waiting() const { return line_.size(); }

 private:
  struct Waiting {
    uint64_t id = 0;
    uint64_t bytes = 0;
    Send send;
  };
  void drain();

  const Ask ask_;
  uint64_t sent_ = 0, limit_ = 0;
  uint64_t asked_ = 0;  // what was last asked for; 0: nothing
  std::deque<Waiting> line_;
};

}  // namespace retort::rpc::detail
