// The connection that TensorPipe holds. Dropping it closes it.
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "rpc/transport/detail/connection_core.h"
#include "rpc/transport/detail/tensorpipe_abi.h"

namespace retort::rpc::transport {

class Connection final : public tensorpipe::transport::Connection {
 public:
  explicit Connection(std::shared_ptr<ConnectionCore> core) : core_(std::move(core)) {}
  ~Connection() override { core_->close(); }

  void read(read_callback_fn fn) override;
  void read(void* data, size_t length, read_callback_fn fn) override;
  void read(tensorpipe::AbstractNopHolder& object, read_nop_callback_fn fn) override;
  void write(const void* data, size_t length, write_callback_fn fn) override;
  void write(const tensorpipe::AbstractNopHolder& object, write_callback_fn fn) override;
  void setId(std::string id) override { core_->set_id(id); }
  void close() override { core_->close(); }

 private:
  const std::shared_ptr<ConnectionCore> core_;
};

}  // namespace retort::rpc::transport
