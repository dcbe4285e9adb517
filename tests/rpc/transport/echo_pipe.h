// Both ends of a conversation over one TensorPipe pipe: a server that sends back what comes, and
// messages that a test compares.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "rpc/transport/detail/operations.h"

namespace retort::rpc::transport::testing {

// Serves until the pipe breaks. A message with the metadata "sink" gets no answer, one with "ack"
// only its payload.
class EchoPipe {
 public:
  static void serve(std::shared_ptr<tensorpipe::Pipe> pipe);
};

// A message with the memory that it needs.
struct Parcel {
  std::string how = "echo";
  std::string payload;
  std::vector<std::vector<char>> tensors;
  tensorpipe::Error error;

  tensorpipe::Message message();
  bool same_content(const Parcel& other) const {
    return !error && !other.error && payload == other.payload && tensors == other.tensors;
  }
};

// Reads the next message. The future is ready with it, or with its error.
std::future<std::shared_ptr<Parcel>> receive(const std::shared_ptr<tensorpipe::Pipe>& pipe);
// Sends; the future is ready when the memory is free.
std::future<tensorpipe::Error> send(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                                    std::shared_ptr<Parcel> parcel);
// Sends and waits for the answer.
std::shared_ptr<Parcel> converse(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                                 std::shared_ptr<Parcel> parcel);
// Bytes that follow from `seed`.
std::shared_ptr<Parcel> make_parcel(uint64_t seed, size_t payload,
                                    const std::vector<size_t>& tensors);
// True if a small message comes back unchanged.
bool answers(const std::shared_ptr<tensorpipe::Pipe>& pipe);

}  // namespace retort::rpc::transport::testing
