// Which tensors of a message are received onto a device: checked on the descriptor, with a stand-in
// for the CUDA module.
#include "rpc/detail/device_transfer.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <tensorpipe/tensorpipe.h>

#include "rpc/detail/data_pipe.h"
#include "rpc/detail/tensor_format.h"
#include "rpc/device_transfer.h"
#include "tests/rpc/plain_transfer.h"
#include "tests/support/thrown.h"

namespace retort::rpc::detail {
namespace {

// "Device" memory is on the CPU; what was asked for is noted.
class FakeTransfer final : public testing::PlainTransfer {
 public:
  void begin_send(const at::Tensor&) override { ++sends; }
  tensorpipe::Buffer send_buffer(const at::Tensor& tensor) override { return buffer(tensor); }
  at::Tensor allocate(const std::vector<int64_t>& sizes, at::ScalarType dtype,
                      int64_t index) override {
    indices.push_back(index);
    return at::empty(sizes, at::TensorOptions().dtype(dtype));
  }
  tensorpipe::Buffer receive_buffer(const at::Tensor& tensor) override {
    received.push_back(tensor);
    return buffer(tensor);
  }

  int sends = 0;
  std::vector<int64_t> indices;
  std::vector<at::Tensor> received;

 private:
  static tensorpipe::Buffer buffer(const at::Tensor& tensor) {
    return tensorpipe::CpuBuffer{tensor.mutable_data_ptr()};
  }
};

struct Route {
  const char* from;
  const char* to;  // null: none named
  int index = 0;
};

tensorpipe::Descriptor descriptor(const std::vector<Route>& routes) {
  tensorpipe::Descriptor d;
  d.payloads.resize(1);
  d.payloads[0].length = 8;
  const TensorFormat format{at::kFloat, {2, 3}};
  for (const Route& route : routes) {
    tensorpipe::Descriptor::Tensor tensor;
    tensor.length = format.size_bytes();
    tensor.sourceDevice = tensorpipe::Device(route.from, 0);
    if (route.to != nullptr) tensor.targetDevice = tensorpipe::Device(route.to, route.index);
    tensor.metadata = format.to_bytes();
    d.tensors.push_back(tensor);
  }
  return d;
}

std::shared_ptr<WireMessage> take(const tensorpipe::Descriptor& d, DeviceTransfer* devices) {
  const auto pool = std::make_shared<ReceivePool>(1 << 20);
  tensorpipe::Allocation allocation;
  const auto message = allocate(d, 1 << 20, *pool, allocation, devices);
  EXPECT_EQ(allocation.tensors.size(), d.tensors.size());
  return message;
}

TEST(DeviceReceive, EachTensorGoesWhereItsTargetSays) {
  FakeTransfer devices;
  const auto message = take(
      descriptor({{"cpu", nullptr}, {"cuda", "cuda", 1}, {"cpu", "cpu", 0}, {"cuda", "cuda", 0}}),
      &devices);
  EXPECT_EQ(message->tensors.size(), 4u);
  EXPECT_EQ(devices.indices, (std::vector<int64_t>{1, 0}));
  ASSERT_EQ(devices.received.size(), 2u);
  EXPECT_TRUE(devices.received[0].is_same(message->tensors[1]));
  EXPECT_TRUE(devices.received[1].is_same(message->tensors[3]));
}

TEST(DeviceReceive, DevicesThatAreNotHereAreCorrupt) {
  FakeTransfer devices;
  for (const Route& route :
       {Route{"cuda", "cuda", 2}, Route{"cuda", "cuda", -1}, Route{"cuda", nullptr},
        Route{"cuda", "cpu", 0}, Route{"cpu", "cuda", 0}, Route{"other", "other", 0}})
    EXPECT_EQ(test::code_of([&] { take(descriptor({route}), &devices); }), ErrorCode::kCorrupt)
        << route.from << route.index;
  EXPECT_EQ(test::code_of([&] {
              take(descriptor({{"cuda", "cuda", 0}}), nullptr);
            }),
            ErrorCode::kCorrupt)
      << "no module";
  EXPECT_TRUE(devices.indices.empty()) << "nothing was allocated";
}

TEST(DeviceSend, TensorsOnTheCpuAreNotAnnounced) {
  FakeTransfer devices;
  begin_send({at::empty({2}), at::empty({3})}, &devices);
  EXPECT_EQ(devices.sends, 0);
  WireMessage message;
  message.tensors = {at::empty({2})};
  EXPECT_FALSE(message.on_device());
  address(message, "teacher/0", 1 << 20, {}, &devices);
  EXPECT_TRUE(message.target_devices.empty());
}

TEST(DeviceTransferModule, AMissingFileSaysSo) {
  test::expect_error(ErrorCode::kUnavailable, "/nonexistent/libretort_cuda.so",
                     [] { load_device_transfer("/nonexistent/libretort_cuda.so"); });
}

}  // namespace
}  // namespace retort::rpc::detail
