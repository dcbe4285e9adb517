// Decodes: what a data message announces (rpc/detail/data_pipe.h): TensorPipe's descriptor with our
//   tensor formats in it (tensor_format.h). TensorPipe parses the descriptor; here the input says
//   its fields.
// Holds: memory is taken for what is announced and for no more than the limit; the message is
//   announced again as it was.
#include "rpc/detail/data_pipe.h"

#include <tensorpipe/tensorpipe.h>

#include <ATen/ops/zeros.h>

#include "rpc/detail/tensor_format.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::message {
namespace {

using namespace rpc::detail;

constexpr uint64_t kMaxBytes = 1 << 20;

tensorpipe::Device device(uint8_t choice) {
  return choice == 0 ? tensorpipe::Device(tensorpipe::kCpuDeviceType, 0)
                     : tensorpipe::Device(tensorpipe::kCudaDeviceType, choice - 1);
}

tensorpipe::Descriptor descriptor_of(std::string_view bytes) {
  ByteSource source(bytes);
  tensorpipe::Descriptor descriptor;
  descriptor.metadata = source.text();
  const uint8_t num_payloads = source.byte();
  for (int i = 0; i < num_payloads % 4; ++i)
    descriptor.payloads.push_back(
        {.length = static_cast<size_t>(source.number<uint64_t>()), .metadata = {}});
  while (!source.empty()) {
    tensorpipe::Descriptor::Tensor tensor;
    tensor.length = static_cast<size_t>(source.number<uint64_t>());
    tensor.sourceDevice = device(source.byte());
    if (const uint8_t target = source.byte()) tensor.targetDevice = device(target - 1);
    tensor.metadata = source.text();
    descriptor.tensors.push_back(std::move(tensor));
  }
  return descriptor;
}

bool decode(std::string_view bytes) {
  const tensorpipe::Descriptor descriptor = descriptor_of(bytes);
  const auto pool = std::make_shared<ReceivePool>(kMaxBytes);
  tensorpipe::Allocation allocation;
  const auto message = allocate(descriptor, kMaxBytes, *pool, allocation);

  expect(message->size_bytes() <= kMaxBytes, "a message is larger than allowed");
  expect(message->size_bytes() == announced_bytes(descriptor, kMaxBytes),
         "a message has another size than was announced");
  expect(allocation.tensors.size() == descriptor.tensors.size(), "a tensor has no memory");
  const tensorpipe::Message again = to_tensorpipe(*message, nullptr);
  for (size_t i = 0; i < descriptor.tensors.size(); ++i) {
    expect(again.tensors[i].length == descriptor.tensors[i].length, "a tensor changes its size");
    expect(again.tensors[i].metadata == descriptor.tensors[i].metadata, "or its format");
  }
  return true;
}

// As `message` announces itself.
std::string bytes_of(const WireMessage& message) {
  const tensorpipe::Message announced = to_tensorpipe(message, nullptr);
  ByteSink sink;
  sink.text(announced.metadata).byte(static_cast<uint8_t>(announced.payloads.size()));
  for (const auto& payload : announced.payloads)
    sink.number(uint64_t{payload.length});
  for (const auto& tensor : announced.tensors)
    sink.number(uint64_t{tensor.length}).byte(0).byte(0).text(tensor.metadata);
  return sink.bytes();
}

std::vector<Seed> seeds() {
  WireMessage small;
  small.payload = "payload";
  WireMessage large;
  large.payload = "payload";
  large.metadata = std::string(1, '\0');
  large.tensors = {at::zeros({3, 4}), at::zeros({0, 7}, at::kLong), at::zeros({}, at::kBFloat16)};
  return {{"small", bytes_of(small)}, {"large", bytes_of(large)}};
}

}  // namespace

Target target() { return {"message", decode, seeds}; }

}  // namespace retort::fuzz::message
