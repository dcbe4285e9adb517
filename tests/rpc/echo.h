// The methods that the tests of the agent call, and a thread that serves them.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "rpc/agent.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::testing {

using namespace std::chrono_literals;

struct EchoRequest {
  std::string text;
  int64_t sleep_ms = 0;     // before the reply
  int64_t reply_bytes = 0;  // an extra tensor of this size comes back
  std::vector<at::Tensor> tensors;
  template <class A>
  void serialize(A& archive) {
    archive(text, sleep_ms, reply_bytes, tensors);
  }
};
struct EchoReply {
  std::string text, caller;
  std::vector<at::Tensor> tensors;
  bool inference = false;
  bool cancelled = false;
  template <class A>
  void serialize(A& archive) {
    archive(text, caller, tensors, inference, cancelled);
  }
};
struct FailRequest {
  int32_t kind = 0;
  template <class A>
  void serialize(A& archive) {
    archive(kind);
  }
};

inline constexpr Method<EchoRequest, EchoReply> kEcho{"test.echo", true};
inline constexpr Method<FailRequest, Empty> kFail{"test.fail"};
inline constexpr Method<Empty, Empty> kNobodyServes{"test.nobody"};
// Takes the reply for another type than it is.
inline constexpr Method<EchoRequest, Empty> kWrongReply{"test.echo"};

inline constexpr const char* kSecret = "the secret of these tests";

inline Agent::Options agent_options(std::string name, RpcOptions rpc = {}) {
  return {.name = std::move(name), .secret = kSecret, .rpc = std::move(rpc)};
}
// "plain" or "tls".
inline RpcOptions rpc_options(const std::string& stream) {
  RpcOptions rpc;
  rpc.encryption = stream == "tls" ? Encryption::kAlways : Encryption::kNever;
  return rpc;
}
inline Deadline soon() { return Deadline::after(60s); }
inline bool eventually(const std::function<bool()>& condition) {
  return test::wait_until(condition, 60s, 1ms);
}

// Runs handlers until it is destroyed.
class HandlerThread {
 public:
  explicit HandlerThread(size_t capacity = 256) : queue(std::make_shared<HandlerQueue>(capacity)) {
    thread_ = std::thread([this] {
      while (!queue->closed() || queue->size() > 0)
        if (auto job = queue->pop(Deadline::after(100ms))) {
          ++taken;
          while (paused)
            std::this_thread::sleep_for(1ms);
          (*job)();
        }
    });
  }
  ~HandlerThread() {
    paused = false;
    queue->close();
    thread_.join();
  }
  const std::shared_ptr<HandlerQueue> queue;
  std::atomic<bool> paused{false};
  std::atomic<int> taken{0};  // jobs that left the queue

 private:
  std::thread thread_;
};

// Registers kEcho and kFail; `ran` counts the echo handlers that began.
void serve_echo(Agent& agent, std::shared_ptr<HandlerQueue> queue,
                std::shared_ptr<std::atomic<int>> ran = nullptr);

// The code of the error that a future, or any call, ends with; a test failure if there is none.
using test::code_of;
template <class T>
ErrorCode code_of(Future<T>& future,
                  std::source_location caller = std::source_location::current()) {
  return test::code_of([&] { future.get(soon()); }, caller);
}

}  // namespace retort::rpc::testing
