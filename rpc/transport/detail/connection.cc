#include "rpc/transport/detail/connection.h"

#include <utility>

#include "base/error.h"

namespace retort::rpc::transport {

void Connection::read(read_callback_fn fn) {
  core_->submit(ReadOperation{.on_bytes = std::move(fn)});
}

void Connection::read(void* data, size_t length, read_callback_fn fn) {
  core_->submit(
      ReadOperation{.sized = true, .data = data, .length = length, .on_bytes = std::move(fn)});
}

void Connection::read(tensorpipe::AbstractNopHolder& object, read_nop_callback_fn fn) {
  core_->submit(ReadOperation{.object = &object, .on_object = std::move(fn)});
}

void Connection::write(const void* data, size_t length, write_callback_fn fn) {
  core_->submit(WriteOperation{.length = length, .data = data, .on_written = std::move(fn)});
}

// The object is written now: it need not live until the bytes are sent.
void Connection::write(const tensorpipe::AbstractNopHolder& object, write_callback_fn fn) {
  WriteOperation write{.length = object.getSize(), .on_written = std::move(fn)};
  write.owned = std::make_unique_for_overwrite<char[]>(write.length);
  write.data = write.owned.get();
  tensorpipe::NopWriter writer(reinterpret_cast<uint8_t*>(write.owned.get()), write.length);
  RETORT_CHECK(object.write(writer).error == nop::ErrorStatus::None) << "an object's size is wrong";
  core_->submit(std::move(write));
}

}  // namespace retort::rpc::transport
