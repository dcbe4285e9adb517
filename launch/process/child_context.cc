#include "launch/process/child_context.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace {

constexpr size_t kMaxContextBytes = 4 << 20;

}  // namespace

std::string encode_context(const ChildContext& context) {
  return JsonLine()
      .add("run", context.run)
      .add("role", context.role)
      .add("rank", context.rank)
      .add("incarnation", context.incarnation)
      .add("restart", context.restart)
      .add("life", context.life)
      .add("store_host", context.store_host)
      .add("store_port", static_cast<int64_t>(context.store_port))
      .add("secret", context.secret)
      .add("encryption", enum_name(context.encryption))
      .add("bind", context.bind)
      .add("advertise", context.advertise)
      .add("cuda", context.cuda)
      .raw("ranks_on_host", nlohmann::json(context.ranks_on_host).dump())
      .add("heartbeat_interval_ms", static_cast<int64_t>(context.heartbeat_interval.count()))
      .add("peer_timeout_ms", static_cast<int64_t>(context.peer_timeout.count()))
      .add("resume", context.resume)
      .add("writes_cache", context.writes_cache)
      .add("threads", context.threads)
      .add("recipe", context.recipe)
      .add("joined", context.joined)
      .add("outlives_launcher", context.outlives_launcher)
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
    context.life = json.at("life").get<int64_t>();

    // The store, and what a process proves and encrypts with when it calls there.
    context.store_host = json.at("store_host").get<std::string>();
    context.store_port = json.at("store_port").get<uint16_t>();
    context.secret = json.at("secret").get<std::string>();
    context.encryption = parse_enum<rpc::Encryption>(json.at("encryption").get<std::string>());

    // The host that it is on, and how long a silent peer is borne with.
    context.bind = json.at("bind").get<std::string>();
    context.advertise = json.at("advertise").get<std::string>();
    context.cuda = json.at("cuda").get<bool>();
    context.ranks_on_host = json.at("ranks_on_host").get<std::map<std::string, int64_t>>();
    context.heartbeat_interval = Duration(json.at("heartbeat_interval_ms").get<int64_t>());
    context.peer_timeout = Duration(json.at("peer_timeout_ms").get<int64_t>());

    // The work itself, and what holds when the launcher is lost.
    context.resume = json.at("resume").get<bool>();
    context.writes_cache = json.at("writes_cache").get<bool>();
    context.threads = json.at("threads").get<int64_t>();
    context.recipe = json.at("recipe").get<std::string>();
    context.joined = json.at("joined").get<bool>();
    context.outlives_launcher = json.at("outlives_launcher").get<bool>();
    context.stop_timeout = Duration(json.at("stop_timeout_ms").get<int64_t>());
    return context;
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        ErrorCode::kCorrupt,
        std::string("what the launcher passed to this process cannot be read: ") + e.what());
  }
}

OwnedFd context_input(const ChildContext& context) {
  const std::string line = encode_context(context) + "\n";
  RETORT_CHECK(line.size() < kMaxContextBytes) << "a context of " << line.size() << " bytes";
  // The context goes through a file in memory, because a pipe would hold 64 KiB alone.
  OwnedFd input(::memfd_create("retort-context", MFD_CLOEXEC));
  if (input.get() < 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot make a file in memory: ") + std::strerror(errno));
  const auto written = ::pwrite(input.get(), line.data(), line.size(), 0);
  if (written != static_cast<ssize_t>(line.size()))
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot write into a file in memory: ") + std::strerror(errno));
  return input;
}

ChildContext read_child_context() {
  if (!std::getenv(kContextVariable))
    throw Error(ErrorCode::kInvalidArgument,
                "role processes are started by `retort launch`, not by hand");
  ::unsetenv(kContextVariable);

  // The context ends with its line, not with its stream: whoever started this process may keep its
  // stdin open.
  std::string text;
  char byte = 0;
  while (text.size() < kMaxContextBytes) {
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || byte == '\n') break;
    text += byte;
  }
  const OwnedFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);

  // What is held here (the run folder's lock, or a host's mark) stays held until this process ends,
  // but not by what it starts.
  ::fcntl(kHoldFd, F_SETFD, FD_CLOEXEC);
  return decode_context(text);
}

}  // namespace retort::launch
