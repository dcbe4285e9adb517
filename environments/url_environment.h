// An environment that is a service: the lines of the protocol, one POST for each call.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "environments/detail/protocol.h"
#include "environments/options.h"
#include "http/client.h"
#include "roles/environment/environment.h"

namespace retort::environments {

// The protocol is in docs/environments.md. A call is sent once: again only where the service says
// that it did not begin with it (429 and 503), within `timeout`. Episodes have random numbers on
// the wire, since a service may have several clients.
//
// Threads: any. Futures complete on the thread of the HTTP client.
class UrlEnvironment final : public roles::Environment {
 public:
  // kInvalidArgument for an address that is none, or a key or file that cannot be read.
  UrlEnvironment(std::string name, const EnvironmentOptions& options, Duration timeout);
  ~UrlEnvironment() override;

  // Asks until the service answers, for `start_timeout`.
  roles::EnvironmentInfo info() override;
  Future<roles::OpenedEpisode> open(roles::OpenEpisode request) override;
  Future<roles::EpisodeAnswer> step(roles::EpisodeTurn turn) override;
  Future<roles::ClosedEpisode> close(roles::CloseEpisode request) override;
  void stop() override;

 private:
  class Calls;
  using MakeLine = std::function<std::string(uint64_t number)>;
  template <class T>
  Future<T> ask(detail::Verb verb, uint64_t caller, const MakeLine& make_line);
  http::Request request(std::string line, Duration timeout) const;
  detail::Reply read(detail::Verb verb, uint64_t number, const http::Response& answer) const;
  void close_given_up(uint64_t number);
  Error explained(const Error& error) const;
  Error told(ErrorCode code, const std::string& what) const;

  const std::string name_;
  const EnvironmentOptions options_;
  const Duration timeout_;
  const http::Url url_;

  std::mutex info_mutex_;
  std::optional<roles::EnvironmentInfo> info_;
  std::unique_ptr<Calls> calls_;
  http::Client client_;  // what waits for it uses the others, and it ends first
};

}  // namespace retort::environments
