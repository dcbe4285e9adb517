// How long to wait before a request that a busy server put off is sent again.
#pragma once

#include <chrono>
#include <optional>

#include "http/message.h"

namespace retort::http::detail {

// What Retry-After says: seconds, or a date (RFC 9110, 10.2.3), which is compared with the answer's
// own Date, so that the clocks need not agree, else with `now`. nullopt if there is none or it
// cannot be read; a date that is past is 0.
std::optional<Duration> retry_after(const Headers& headers,
                                    std::chrono::system_clock::time_point now);

// The pause before attempt `num_pauses` + 2. What the server asks for is kept, with up to
// first_pause added, so that those it turned away together do not come back together. Without it,
// and where that is no time at all, first_pause, doubled each time up to longest_pause, times a
// factor from 0.5 to 1. `jitter`: in (0, 1).
Duration pause_before(std::optional<Duration> asked, const Patience& patience, int num_pauses,
                      double jitter);

}  // namespace retort::http::detail
