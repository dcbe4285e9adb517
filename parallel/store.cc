#include <algorithm>
#include <cctype>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "parallel/detail/c10d_impl.h"
#include "parallel/detail/sockets.h"
#include "parallel/world.h"

namespace retort::parallel {
namespace detail {

std::string first_line(const std::exception& e) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&e);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : e.what();
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

bool says_timeout(const std::string& message) {
  std::string lower = message;
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.find("timed out") != std::string::npos || lower.find("timeout") != std::string::npos;
}

}  // namespace detail

namespace {

// Runs one store operation; a failure becomes kTimeout or kPeerLost naming operation, key and
// store.
template <class F>
auto store_call(const StoreClient::Impl& impl, const char* operation, const std::string& key,
                F&& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    // The type is asked first, because the text names the key, and that may have "timeout" in it.
    const std::string why = detail::first_line(e);
    const bool lost = dynamic_cast<const c10::DistNetworkError*>(&e) != nullptr;
    const bool timeout = !lost && detail::says_timeout(why);
    throw Error(
        timeout ? ErrorCode::kTimeout : ErrorCode::kPeerLost,
        std::string("store ") + operation + " of key '" + impl.prefix + key + "' failed: " + why)
        .with("store", impl.address);
  }
}

std::vector<std::string> with_prefix(const StoreClient::Impl& impl,
                                     const std::vector<std::string>& keys) {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string& key : keys)
    full.push_back(impl.prefix + key);
  return full;
}

// "address/0" or "address/0 and 7 more", for errors.
std::string key_names(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no keys";
  return keys.size() == 1 ? keys.front()
                          : keys.front() + " and " + std::to_string(keys.size() - 1) + " more";
}

// Zero would mean "for ever" to c10d.
std::chrono::milliseconds time_left(Deadline deadline) {
  return std::max(deadline.remaining(), std::chrono::milliseconds(1));
}

}  // namespace

StoreClient::StoreClient(const std::string& host, uint16_t port, std::string prefix,
                         std::chrono::milliseconds timeout, const ConnectStore& connect)
    : impl_(std::make_shared<Impl>()) {
  impl_->prefix = std::move(prefix);
  impl_->address = host + ":" + std::to_string(port);
  if (connect) {
    impl_->store = connect(host, port, timeout);  // its errors name the store
    return;
  }

  // c10d's client overruns its timeout while nothing listens, so a bounded wait goes first.
  try {
    detail::wait_until_accepting(host, port, Deadline::after(timeout));
  } catch (const Error& e) {
    throw Error(e.code(), "the run's store did not answer within " +
                              std::to_string(timeout.count()) + " ms: " + e.message())
        .with("store", impl_->address);
  }

  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& e) {
    throw Error(
        ErrorCode::kTimeout,
        "the run's store accepted the connection but did not answer: " + detail::first_line(e))
        .with("store", impl_->address);
  }
}

void StoreClient::set(const std::string& key, const std::string& value) {
  store_call(*impl_, "set", key, [&] {
    impl_->store->set(impl_->prefix + key, std::vector<uint8_t>(value.begin(), value.end()));
  });
}

std::string StoreClient::get(const std::string& key, Deadline deadline) {
  return get_all({key}, deadline).front();
}

std::vector<std::string> StoreClient::get_all(const std::vector<std::string>& keys,
                                              Deadline deadline) {
  if (keys.empty()) return {};
  const std::vector<std::string> full = with_prefix(*impl_, keys);
  const auto values = store_call(*impl_, "get", key_names(keys), [&] {
    if (!impl_->store->check(full)) impl_->store->wait(full, time_left(deadline));
    return impl_->store->multiGet(full);
  });

  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const std::vector<uint8_t>& value : values)
    texts.emplace_back(value.begin(), value.end());
  return texts;
}

void StoreClient::wait_all(const std::vector<std::string>& keys, Deadline deadline) {
  store_call(*impl_, "wait", key_names(keys),
             [&] { impl_->store->wait(with_prefix(*impl_, keys), time_left(deadline)); });
}

bool StoreClient::contains(const std::string& key) { return contains_all({key}); }

bool StoreClient::contains_all(const std::vector<std::string>& keys) {
  return store_call(*impl_, "check", key_names(keys),
                    [&] { return impl_->store->check(with_prefix(*impl_, keys)); });
}

int64_t StoreClient::add(const std::string& key, int64_t amount) {
  return store_call(*impl_, "add", key,
                    [&] { return impl_->store->add(impl_->prefix + key, amount); });
}

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(const std::string& host, uint16_t port) : impl_(std::make_unique<Impl>()) {
  uint16_t bound_port = 0;
  // c10d would listen at all interfaces; a socket that is bound already keeps the store to `host`.
  const int fd = detail::bind_tcp_socket(host, port, bound_port);
  c10d::TCPStoreOptions options;
  options.port = bound_port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = fd;  // the server owns and closes it
  options.timeout = std::chrono::seconds(30);
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kUnavailable, "cannot start the run's store at " + host + ":" +
                                             std::to_string(bound_port) + ": " +
                                             detail::first_line(e));
  }
}

StoreServer::~StoreServer() = default;

uint16_t StoreServer::port() const { return impl_->store->getPort(); }

}  // namespace retort::parallel
