#include "tests/rpc/transport/echo_pipe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace retort::rpc::transport::testing {
namespace {

using PipePtr = std::shared_ptr<tensorpipe::Pipe>;

tensorpipe::Allocation allocate(const tensorpipe::Descriptor& descriptor, Parcel& parcel) {
  tensorpipe::Allocation allocation;
  parcel.how = descriptor.metadata;
  if (!descriptor.payloads.empty()) {
    parcel.payload.resize(descriptor.payloads.front().length);
    allocation.payloads.push_back({parcel.payload.data()});
  }
  for (const auto& tensor : descriptor.tensors)
    parcel.tensors.emplace_back(tensor.length);
  for (auto& tensor : parcel.tensors)
    allocation.tensors.push_back({tensorpipe::CpuBuffer{tensor.data()}});
  return allocation;
}

template <class T>
T get(std::future<T> future) {
  RETORT_CHECK(future.wait_for(std::chrono::seconds(60)) == std::future_status::ready)
      << "a callback did not run";
  return future.get();
}

void serve_next(const PipePtr& pipe) {
  pipe->readDescriptor([pipe](const tensorpipe::Error& error, tensorpipe::Descriptor descriptor) {
    if (error) return pipe->close();
    auto parcel = std::make_shared<Parcel>();
    pipe->read(allocate(descriptor, *parcel), [pipe, parcel](const tensorpipe::Error& broken) {
      if (broken) return pipe->close();
      if (parcel->how == "sink") return;
      if (parcel->how == "ack") parcel->tensors.clear();
      pipe->write(parcel->message(), [pipe, parcel](const tensorpipe::Error& unsent) {
        if (unsent) pipe->close();
      });
    });
    serve_next(pipe);
  });
}

}  // namespace

void EchoPipe::serve(PipePtr pipe) { serve_next(pipe); }

tensorpipe::Message Parcel::message() {
  tensorpipe::Message out;
  out.metadata = how;
  out.payloads.push_back({payload.data(), payload.size()});
  for (auto& tensor : tensors) {
    tensorpipe::Message::Tensor entry;
    entry.buffer = tensorpipe::CpuBuffer{tensor.data()};
    entry.length = tensor.size();
    entry.metadata = "metadata";
    out.tensors.push_back(std::move(entry));
  }
  return out;
}

std::future<std::shared_ptr<Parcel>> receive(const PipePtr& pipe) {
  auto promise = std::make_shared<std::promise<std::shared_ptr<Parcel>>>();
  auto parcel = std::make_shared<Parcel>();
  pipe->readDescriptor([pipe, promise, parcel](const tensorpipe::Error& error,
                                               tensorpipe::Descriptor descriptor) {
    parcel->error = error;
    if (error) return promise->set_value(parcel);
    pipe->read(allocate(descriptor, *parcel), [promise, parcel](const tensorpipe::Error& broken) {
      parcel->error = broken;
      promise->set_value(parcel);
    });
  });
  return promise->get_future();
}

std::future<tensorpipe::Error> send(const PipePtr& pipe, std::shared_ptr<Parcel> parcel) {
  auto promise = std::make_shared<std::promise<tensorpipe::Error>>();
  pipe->write(parcel->message(),
              [promise, parcel](const tensorpipe::Error& error) { promise->set_value(error); });
  return promise->get_future();
}

std::shared_ptr<Parcel> converse(const PipePtr& pipe, std::shared_ptr<Parcel> parcel) {
  auto answer = receive(pipe);
  auto sent = send(pipe, std::move(parcel));
  get(std::move(sent));
  return get(std::move(answer));
}

std::shared_ptr<Parcel> make_parcel(uint64_t seed, size_t payload,
                                    const std::vector<size_t>& tensors) {
  // Eight bytes at a time: a sanitizer looks at each write.
  const auto fill = [&seed](auto& bytes) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(seed)) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      std::memcpy(bytes.data() + at, &seed, std::min(sizeof(seed), bytes.size() - at));
    }
  };
  auto parcel = std::make_shared<Parcel>();
  parcel->payload.resize(payload);
  fill(parcel->payload);
  for (const size_t size : tensors) {
    parcel->tensors.emplace_back(size);
    fill(parcel->tensors.back());
  }
  return parcel;
}

bool answers(const PipePtr& pipe) {
  const auto parcel = make_parcel(1, 100, {10'000});
  return converse(pipe, parcel)->same_content(*parcel);
}

}  // namespace retort::rpc::transport::testing
