#include "tests/losses/stand_in_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

namespace retort::test {
namespace {

constexpr at::DeviceType kType = at::DeviceType::PrivateUse1;
const at::Device kDevice(kType, 0);
std::atomic<int64_t> operators{0};

size_t pages(size_t bytes) { return std::max<size_t>((bytes + 4095) / 4096 * 4096, 4096); }

void protect(void* memory, size_t bytes, int protection) {
  if (memory && ::mprotect(memory, pages(bytes), protection) != 0)
    throw std::runtime_error("mprotect");
}

// Memory that nobody can read. The length stands beside the address: munmap wants it.
class Memory : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* memory = ::mmap(nullptr, pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return {memory, new Block{memory, pages(bytes)}, &release, kDevice};
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::runtime_error("the allocator does not copy");
  }

 private:
  struct Block {
    void* memory;
    size_t bytes;
  };
  static void release(void* context) {
    const auto* block = static_cast<Block*>(context);
    ::munmap(block->memory, block->bytes);
    delete block;
  }
};

Memory* memory() {
  static Memory the_memory;
  return &the_memory;
}

struct Guard : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
};

// Backward asks for the device's current stream, and through these whether it has one.
struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
};

// The tensor's elements as a CPU tensor; readable and writable while this lives.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) : tensor_(tensor) {
    if (tensor.is_cpu() || tensor.numel() == 0) return;
    protect(base(), tensor.storage().nbytes(), PROT_READ | PROT_WRITE);
  }
  ~Opened() {
    if (!tensor_.is_cpu() && tensor_.numel() > 0)
      ::mprotect(base(), pages(tensor_.storage().nbytes()), PROT_NONE);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  at::Tensor host() const {
    if (tensor_.is_cpu()) return tensor_;
    return at::from_blob(tensor_.mutable_data_ptr(), tensor_.sizes(), tensor_.strides(),
                         at::TensorOptions().dtype(tensor_.scalar_type()));
  }

 private:
  void* base() const { return tensor_.storage().mutable_data(); }

  at::Tensor tensor_;
};

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  if (target.numel() == 0) return target;
  const Opened from(source), to(target);
  to.host().copy_(from.host());
  return target;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize());
  if (self.storage().nbytes() < bytes) {  // what it held is lost
    self.storage().set_data_ptr_noswap(memory()->allocate(bytes));
    self.storage().set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) resize(target, source.sizes(), {});
  return copy_from(source, target, false);
}

// A tensor that a kernel of a device could not read.
bool is_elsewhere(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.dim() > 0;
}

bool is_elsewhere(const c10::IValue& value) {
  if (value.isTensor()) return is_elsewhere(value.toTensor());
  if (!value.isList()) return false;
  for (const c10::IValue& element : value.toListRef())
    if (is_elsewhere(element)) return true;
  return false;
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size()))
    if (is_elsewhere(value))
      throw std::runtime_error(op.schema().name() + " got tensors of the device and of the host");
  ++operators;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

}  // namespace

at::Device stand_in_device() {
  static const Guard guard;
  static Hooks hooks;
  static const bool registered = [] {
    c10::SetAllocator(kType, memory());
    c10::impl::registerDeviceGuard(kType, &guard);
    c10::register_privateuse1_backend("stand_in");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  (void)registered;
  return kDevice;
}

int64_t stand_in_operators() { return operators; }

}  // namespace retort::test
