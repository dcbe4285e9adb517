// A c10d::Store whose connection is proved and may be encrypted: what Gloo's and NCCL's process
// groups and the roles' addresses go through.
//
// Use: as c10d::TCPStore's client. multiGet and multiSet are one round trip each; append, multiGet
//   and multiSet are there (hasExtendedApi). Queues and listKeys are not: nothing here uses them.
// Errors: what c10d's callers know: c10::DistStoreError for a wait that timed out ("timed out", and
//   the keys that are missing) and for a full store, c10::DistNetworkError for a lost connection,
//   c10::ValueError for keys or values that are too large or do not fit the operation.
//   When a server is silent or the connection is lost, the operation may have happened or not.
// Timeouts: every call ends by the store's timeout or by the one given to wait(). Zero there means
//   the store's own, because there is no wait without an end. A wait is ended by the server, which
//   knows the missing keys; if the server is silent the client ends it, kAnswerGrace later.
// Threads: any number at a time, each waits for its own reply alone. setTimeout() is not for a
//   store that other threads are using: a clone() has a timeout of its own, and shares the
//   connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rpc/rendezvous/store_session.h"

namespace retort::rpc::rendezvous {

inline constexpr std::chrono::seconds kAnswerGrace{5};

class StoreClient final : public c10d::Store {
 public:
  // kInvalidArgument for a timeout that is not positive.
  StoreClient(std::shared_ptr<StoreSession> session, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;

  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;

  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  // Sends it and waits; throws what c10d's callers know unless it is done.
  StoreReply call(StoreRequest request, std::chrono::milliseconds timeout);
  StoreReply call(StoreRequest request) { return call(std::move(request), timeout_); }

  const std::shared_ptr<StoreSession> session_;
};

}  // namespace retort::rpc::rendezvous
