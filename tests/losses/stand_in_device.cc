#include "tests/losses/stand_in_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ScopeExit.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/losses/stand_in_operators.h"

namespace retort::test {
namespace {

constexpr at::DeviceType kType = at::DeviceType::PrivateUse1;
std::atomic<int64_t> device_in_use{0};
std::atomic<int64_t> operators{0}, copies_to_host{0};
std::atomic<int64_t> pinned_blocks{0}, recorded_uses{0};

at::Device current_device() { return {kType, static_cast<at::DeviceIndex>(device_in_use.load())}; }

size_t pages(size_t bytes) { return std::max<size_t>((bytes + 4095) / 4096 * 4096, 4096); }

// The blocks of the device, and who has which of them open: several threads may, and a block can
// be read by the host until the last of them is done.
class Blocks {
 public:
  void* add(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const int protection = all_open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* memory = ::mmap(nullptr, pages(bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    blocks_[static_cast<const char*>(memory)] = {.bytes = pages(bytes)};
    held_ += pages(bytes);
    peak_ = std::max(peak_, held_);
    return memory;
  }
  void remove(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<const char*>(memory));
    ::munmap(memory, block->second.bytes);
    held_ -= block->second.bytes;
    blocks_.erase(block);
  }
  void open(const void* inside) { change(inside, +1); }
  void close(const void* inside) { change(inside, -1); }
  // All that there are, and those that are added meanwhile.
  void open_all() { change_all(+1); }
  void close_all() { change_all(-1); }
  size_t peak() {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  struct Block {
    size_t bytes = 0;
    int openers = 0;
  };
  void change(const void* inside, int by) {
    const std::lock_guard lock(mutex_);
    const auto block = std::prev(blocks_.upper_bound(static_cast<const char*>(inside)));
    const int before = block->second.openers;
    block->second.openers += by;
    if (all_open_ == 0 && (before == 0 || block->second.openers == 0)) protect(*block, by > 0);
  }
  void change_all(int by) {
    const std::lock_guard lock(mutex_);
    const int before = all_open_;
    all_open_ += by;
    if (before != 0 && all_open_ != 0) return;
    for (const auto& block : blocks_)
      if (block.second.openers == 0) protect(block, by > 0);
  }
  static void protect(const std::pair<const char* const, Block>& block, bool open) {
    const int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (::mprotect(const_cast<char*>(block.first), block.second.bytes, protection) != 0)
      std::abort();
  }

  std::mutex mutex_;
  std::map<const char*, Block> blocks_;
  int all_open_ = 0;
  size_t held_ = 0, peak_ = 0;
};

Blocks& blocks() {
  static Blocks& all = *new Blocks;  // tensors that are never destroyed may outlive it otherwise
  return all;
}

// What RecordedBlocks has.
class AllocationLog {
 public:
  void add(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (records_) bytes_.push_back(bytes);
  }
  void record(bool records) {
    const std::lock_guard lock(mutex_);
    if (records && records_) throw std::runtime_error("blocks are recorded already");
    records_ = records;
    bytes_.clear();
  }
  int64_t count(size_t bytes) {
    const std::lock_guard lock(mutex_);
    return std::count_if(bytes_.begin(), bytes_.end(), [&](size_t b) { return b >= bytes; });
  }

 private:
  std::mutex mutex_;
  bool records_ = false;
  std::vector<size_t> bytes_;
};

AllocationLog& allocation_log() {
  static AllocationLog& log = *new AllocationLog;
  return log;
}

// Memory that nobody can read.
class Memory : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    allocation_log().add(bytes);
    void* memory = blocks().add(bytes);
    return {memory, memory, &release, current_device()};
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::runtime_error("the allocator does not copy");
  }

 private:
  static void release(void* memory) { blocks().remove(memory); }
};

Memory* memory() {
  static Memory the_memory;
  return &the_memory;
}

// Of the host, as a driver would pin it.
class PinnedMemory : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    ++pinned_blocks;
    auto block = std::make_unique<at::DataPtr>(c10::GetCPUAllocator()->allocate(bytes));
    void* memory = block->get();
    return {memory, block.release(), &release, at::kCPU};
  }
  static bool has(const at::Tensor& tensor) {
    return tensor.storage().data_ptr().get_deleter() == &release;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* block) { delete static_cast<at::DataPtr*>(block); }
};

thread_local int64_t set_in_thread = -1;

struct Guard : c10::impl::NoOpDeviceGuardImpl<kType> {
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {
    ++recorded_uses;
  }
  c10::Device exchangeDevice(c10::Device) const override { return current_device(); }
  void setDevice(c10::Device device) const override { set_in_thread = device.index(); }
  c10::Device getDevice() const override { return current_device(); }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, current_device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(stand_in_devices());
  }
};

// Backward asks for the device's current stream, and through these whether it has one.
struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(stand_in_devices());
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory the_memory;
    return &the_memory;
  }
};

// The tensor's elements as a CPU tensor; readable and writable while this lives.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) : tensor_(tensor) {
    if (protects()) blocks().open(base());
  }
  ~Opened() {
    if (protects()) blocks().close(base());
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  at::Tensor host() const {
    if (tensor_.is_cpu()) return tensor_;
    return at::from_blob(tensor_.mutable_data_ptr(), tensor_.sizes(), tensor_.strides(),
                         at::TensorOptions().dtype(tensor_.scalar_type()));
  }

 private:
  bool protects() const { return !tensor_.is_cpu() && tensor_.numel() > 0; }
  void* base() const { return tensor_.storage().mutable_data(); }

  at::Tensor tensor_;
};

// Copies that this thread makes for an operator do not count.
thread_local bool in_operator = false;

// What RecordedReads has; autograd's threads write too.
struct ReadLog {
  std::mutex mutex;
  bool records = false;
  std::vector<std::string> reads, copies_to_device;

  void add(const std::string& what, const at::Tensor& tensor) { add(reads, what + " ", tensor); }
  void add_copy_to_device(const at::Tensor& source, bool waits) {
    add(copies_to_device, waits ? "waits " : "", source);
  }

 private:
  void add(std::vector<std::string>& list, const std::string& what, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex);
    if (!records) return;
    std::ostringstream text;
    text << what << c10::toString(tensor.scalar_type()) << tensor.sizes();
    list.push_back(text.str());
  }
};

ReadLog& read_log() {
  static ReadLog& log = *new ReadLog;
  return log;
}

// Operators that end with the host knowing a number, or a shape that depends on numbers.
const std::map<std::string, std::string>& reading_operators() {
  static const std::map<std::string, std::string> names{
      {"aten::_local_scalar_dense", "item"}, {"aten::equal", "equal"},
      {"aten::nonzero", "nonzero"},          {"aten::masked_select", "masked_select"},
      {"aten::_unique2", "unique"},          {"aten::unique_consecutive", "unique"},
      {"aten::unique_dim", "unique"},        {"aten::bincount", "bincount"}};
  return names;
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

bool holds_mask(const c10::IValue& list) {
  if (!list.isList()) return false;
  for (const c10::IValue& element : list.toListRef())
    if (element.isTensor() && is_mask(element.toTensor())) return true;
  return false;
}

void note_reads(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (const auto reading = reading_operators().find(name); reading != reading_operators().end())
    read_log().add(reading->second, arguments.at(0).toTensor());
  else if (name.starts_with("aten::index") && arguments.size() > 1 && holds_mask(arguments[1]))
    read_log().add("index by a mask of", arguments.at(0).toTensor());
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) return target;
  if (source.is_cpu() && !target.is_cpu() && !in_operator)
    read_log().add_copy_to_device(source, !non_blocking || !PinnedMemory::has(source));
  if (target.is_cpu() && !source.is_cpu() && !in_operator) {
    ++copies_to_host;
    read_log().add("copy", source);
  }
  if (!source.is_cpu() && !target.is_cpu()) note_stand_in_operator("copy", {source, target});
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

const at::Tensor& resize_in_place(const at::Tensor& self, at::IntArrayRef size,
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
  if (target.sizes() != source.sizes()) resize_in_place(target, source.sizes(), {});
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
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  note_stand_in_operator(op.schema().name(), arguments);
  note_reads(op.schema().name(), arguments);
  const bool outer = std::exchange(in_operator, true);
  const auto leave = c10::make_scope_exit([outer] { in_operator = outer; });
  at::native::cpu_fallback(op, stack);
}

// What CUDA has of its own: products of 16 bits with float32 sums and results. On its terms.
void check_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  const bool narrow = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf;
  if (is_elsewhere(a) || is_elsewhere(b) || a.scalar_type() != b.scalar_type() || !narrow ||
      dtype != at::kFloat)
    throw std::runtime_error("a product with out_dtype that the device has not");
}

at::Tensor& addmm_dtype_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                            at::ScalarType dtype, const at::Scalar& beta, const at::Scalar& alpha,
                            at::Tensor& out) {
  check_product(a, b, dtype);
  ++operators;
  note_stand_in_operator("aten::addmm", {self, a, b});
  const Opened sum(self), x(a), y(b), result(out);
  at::Tensor there = result.host();
  at::addmm_out(there, sum.host(), x.host().to(dtype), y.host().to(dtype), beta, alpha);
  return out;
}

at::Tensor mm_dtype(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  check_product(a, b, dtype);
  at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  ++operators;
  note_stand_in_operator("aten::mm", {a, b, result});
  const Opened x(a), y(b), z(result);
  z.host().copy_(at::mm(x.host().to(dtype), y.host().to(dtype)));
  return result;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm.dtype", &mm_dtype);
  m.impl("addmm.dtype_out", &addmm_dtype_out);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_in_place);
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
  return current_device();
}

int64_t stand_in_devices() {
  static const int64_t count = [] {
    const char* said = std::getenv("STAND_IN_DEVICES");
    return said == nullptr ? int64_t{1} : std::stoll(said);
  }();
  return count;
}

void use_stand_in_device(int64_t index) { device_in_use = index; }

int64_t stand_in_device_of_thread() { return set_in_thread; }

int64_t stand_in_operators() { return operators; }
int64_t stand_in_copies_to_host() { return copies_to_host; }

RecordedReads::RecordedReads() {
  const std::lock_guard lock(read_log().mutex);
  if (std::exchange(read_log().records, true))
    throw std::runtime_error("the reads of the stand-in are recorded already");
}

RecordedReads::~RecordedReads() {
  const std::lock_guard lock(read_log().mutex);
  read_log().records = false;
  read_log().reads.clear();
  read_log().copies_to_device.clear();
}

std::vector<std::string> RecordedReads::take() {
  const std::lock_guard lock(read_log().mutex);
  return std::exchange(read_log().reads, {});
}

std::vector<std::string> RecordedReads::take_copies_to_device() {
  const std::lock_guard lock(read_log().mutex);
  return std::exchange(read_log().copies_to_device, {});
}

RecordedBlocks::RecordedBlocks() { allocation_log().record(true); }
RecordedBlocks::~RecordedBlocks() { allocation_log().record(false); }
int64_t RecordedBlocks::of_at_least(size_t bytes) const { return allocation_log().count(bytes); }

int64_t stand_in_peak_bytes() { return static_cast<int64_t>(blocks().peak()); }
int64_t stand_in_pinned_blocks() { return pinned_blocks; }
int64_t stand_in_recorded_uses() { return recorded_uses; }

void read_stand_in(void* host, const void* there, size_t bytes) {
  blocks().open(there);
  std::memcpy(host, there, bytes);
  blocks().close(there);
}

void write_stand_in(void* there, const void* host, size_t bytes) {
  blocks().open(there);
  std::memcpy(there, host, bytes);
  blocks().close(there);
}

void with_open_stand_in(const std::function<void()>& run) {
  blocks().open_all();
  const auto close = c10::make_scope_exit([] { blocks().close_all(); });
  run();
}

}  // namespace retort::test
