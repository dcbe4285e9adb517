// The declarations of TensorPipe that the torch wheel does not ship, reduced to what a transport
// needs: the connection, the listener, and the objects that are written to a connection.
//
// Source: TensorPipe at commit 2b4cd91 (tensorpipe/transport/connection.h, transport/listener.h,
//   common/nop.h) and libnop's Status<void>. The order of the virtual functions equals the tables
//   in libtorch_cpu.so of the torch 2.11.0 wheel.
// Version: another wheel may change any of this without an error of compiler or linker. So the
//   build pins the version (RETORT_TORCH_VERSION in cmake/RetortTorch.cmake), a static_assert below
//   pins the header's, and tests/rpc/transport/conformance_test.cc sends messages through every
//   function.
#pragma once

#include <tensorpipe/common/error.h>
#include <tensorpipe/transport/context.h>
#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

static_assert(
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11 && TORCH_VERSION_PATCH == 0,
    "compare this file with the TensorPipe of the new wheel, then change the version here");

namespace nop {

enum class ErrorStatus : int { None = 0 };

template <class T>
struct Status;

// The real class has copy and move constructors of its own, so it is returned through a hidden
// pointer. These constructors must stay as they are: a trivially copyable class would come back in
// a register instead.
template <>
struct Status<void> {
  Status() noexcept : error(ErrorStatus::None) {}
  Status(const Status& other) : error(other.error) {}
  Status(Status&& other) noexcept : error(other.error) { other.error = ErrorStatus::None; }
  Status& operator=(const Status&) = default;
  ErrorStatus error;
};
static_assert(sizeof(Status<void>) == sizeof(int));

}  // namespace nop

namespace tensorpipe {

// Up to two regions of bytes that an object is parsed from. It does not check bounds while it
// reads.
class NopReader final {
 public:
  NopReader(const uint8_t* data, size_t length) : data1_(data), length1_(length) {}
  size_t left() const { return length1_ + length2_; }

 private:
  const uint8_t* data1_ = nullptr;
  size_t length1_ = 0;
  const uint8_t* data2_ = nullptr;
  size_t length2_ = 0;
};

class NopWriter final {
 public:
  NopWriter(uint8_t* data, size_t length) : data1_(data), length1_(length) {}

 private:
  uint8_t* data1_ = nullptr;
  size_t length1_ = 0;
  uint8_t* data2_ = nullptr;
  size_t length2_ = 0;
};
static_assert(sizeof(NopReader) == 4 * sizeof(void*) && sizeof(NopWriter) == 4 * sizeof(void*));

class AbstractNopHolder {
 public:
  virtual size_t getSize() const = 0;
  virtual nop::Status<void> write(NopWriter& writer) const = 0;
  virtual nop::Status<void> read(NopReader& reader) = 0;
  virtual ~AbstractNopHolder() = default;
};

namespace transport {

class Connection {
 public:
  using read_callback_fn = std::function<void(const Error& error, const void* data, size_t length)>;
  using write_callback_fn = std::function<void(const Error& error)>;
  using read_nop_callback_fn = std::function<void(const Error& error)>;

  virtual void read(read_callback_fn fn) = 0;
  virtual void read(void* data, size_t length, read_callback_fn fn) = 0;
  virtual void write(const void* data, size_t length, write_callback_fn fn) = 0;
  virtual void read(AbstractNopHolder& object, read_nop_callback_fn fn) = 0;
  virtual void write(const AbstractNopHolder& object, write_callback_fn fn) = 0;
  virtual void setId(std::string id) = 0;
  virtual void close() = 0;
  virtual ~Connection() = default;
};

class Listener {
 public:
  using accept_callback_fn =
      std::function<void(const Error& error, std::shared_ptr<Connection> connection)>;

  virtual void accept(accept_callback_fn fn) = 0;
  virtual std::string addr() const = 0;
  virtual void setId(std::string id) = 0;
  virtual void close() = 0;
  virtual ~Listener() = default;
};

}  // namespace transport
}  // namespace tensorpipe
