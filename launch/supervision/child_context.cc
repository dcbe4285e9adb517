#include "launch/supervision/child_context.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::launch {

std::string encode_context(const ChildContext& context) {
  return JsonLine()
      .add("run", context.run)
      .add("role", context.role)
      .add("rank", context.rank)
      .add("incarnation", context.incarnation)
      .add("restart", context.restart)
      .add("store_host", context.store_host)
      .add("store_port", static_cast<int64_t>(context.store_port))
      .add("secret", context.secret)
      .add("resume", context.resume)
      .add("threads", context.threads)
      .add("stop_timeout_ms", static_cast<int64_t>(context.stop_timeout.count()))
      .str();
}

ChildContext decode_context(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    ChildContext context;
    context.run = json.at("run").get<std::string>();
    context.role = json.at("role").get<std::string>();
    context.rank = json.at("rank").get<int64_t>();
    context.incarnation = json.at("incarnation").get<int64_t>();
    context.restart = json.at("restart").get<int64_t>();
    context.store_host = json.at("store_host").get<std::string>();
    context.store_port = json.at("store_port").get<uint16_t>();
    context.secret = json.at("secret").get<std::string>();
    context.resume = json.at("resume").get<bool>();
    context.threads = json.at("threads").get<int64_t>();
    context.stop_timeout = Duration(json.at("stop_timeout_ms").get<int64_t>());
    return context;
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        ErrorCode::kCorrupt,
        std::string("what the launcher passed to this process cannot be read: ") + e.what());
  }
}

ChildChannels open_child_channels() {
  if (!std::getenv(kChannelsVariable))
    throw Error(ErrorCode::kInvalidArgument,
                "role processes are started by `retort launch`, not by hand");
  ::unsetenv(kChannelsVariable);
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(kContextFd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(kContextFd);
  // Held open until this process ends, but not by what it starts.
  ::fcntl(kHoldFd, F_SETFD, FD_CLOEXEC);
  return {decode_context(text), kLifeFd, kStatusFd};
}

}  // namespace retort::launch
