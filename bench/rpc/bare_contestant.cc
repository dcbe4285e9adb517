#include "bench/rpc/bare_contestant.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <tensorpipe/tensorpipe.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"

namespace retort::bench {
namespace {

void set_up(tensorpipe::Context& context, bool cma) {
  context.registerTransport(1, "uv", tensorpipe::transport::uv::create());
  if (cma) context.registerChannel(2, "cma", tensorpipe::channel::cma::create());
  context.registerChannel(1, "basic", tensorpipe::channel::basic::create());
}

// One accepted pipe: reads messages and answers each.
class Echo : public std::enable_shared_from_this<Echo> {
 public:
  Echo(std::shared_ptr<tensorpipe::Pipe> pipe, void* buffer)
      : pipe_(std::move(pipe)), buffer_(buffer) {}

  void receive() {
    pipe_->readDescriptor([self = shared_from_this()](const tensorpipe::Error& error,
                                                      tensorpipe::Descriptor descriptor) noexcept {
      if (error) return;
      tensorpipe::Allocation allocation;
      allocation.payloads.resize(1);
      allocation.payloads[0].data = self->payload_.data();
      if (!descriptor.tensors.empty())
        allocation.tensors.push_back({tensorpipe::CpuBuffer{self->buffer_}});
      self->pipe_->read(std::move(allocation), [self](const tensorpipe::Error& failed) noexcept {
        if (failed) return;
        tensorpipe::Message answer;
        answer.payloads.push_back({self->payload_.data(), 8, ""});
        self->pipe_->write(std::move(answer), [](const tensorpipe::Error&) noexcept {});
        self->receive();
      });
    });
  }

 private:
  const std::shared_ptr<tensorpipe::Pipe> pipe_;
  void* const buffer_;
  std::array<char, kSmallBytes> payload_{};
};

// One pipe of the asking side. Used by one thread.
class Asker {
 public:
  explicit Asker(std::shared_ptr<tensorpipe::Pipe> pipe) : pipe_(std::move(pipe)) { listen(); }
  ~Asker() {
    pipe_->close();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_; });
  }

  void begin(int64_t bytes, const at::Tensor& tensor) {
    tensorpipe::Message message;
    message.payloads.push_back(
        {payload_.data(), static_cast<size_t>(tensor.defined() ? 8 : kSmallBytes), ""});
    if (tensor.defined()) {
      tensorpipe::Message::Tensor entry;
      entry.buffer = tensorpipe::CpuBuffer{tensor.mutable_data_ptr()};
      entry.length = static_cast<size_t>(bytes);
      message.tensors.push_back(std::move(entry));
    }
    pipe_->write(std::move(message), [](const tensorpipe::Error&) noexcept {});
  }

  // Until one more answer is there.
  void wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kWait, [&] { return answers_ > 0 || closed_; }) || closed_)
      throw Error(ErrorCode::kTimeout, "bare TensorPipe did not answer");
    --answers_;
  }

 private:
  void listen() {
    pipe_->readDescriptor([this](const tensorpipe::Error& error, tensorpipe::Descriptor) noexcept {
      if (error) return close();
      tensorpipe::Allocation allocation;
      allocation.payloads.push_back({answer_.data()});
      pipe_->read(std::move(allocation), [this](const tensorpipe::Error& failed) noexcept {
        if (failed) return close();
        {
          std::lock_guard lock(mutex_);
          ++answers_;
        }
        changed_.notify_one();
        listen();
      });
    });
  }
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  const std::shared_ptr<tensorpipe::Pipe> pipe_;
  std::array<char, kSmallBytes> payload_{}, answer_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t answers_ = 0;
  bool closed_ = false;
};

class BareContestant final : public Contestant {
 public:
  BareContestant(bool cma, const std::string& url, Source source) : source_(std::move(source)) {
    set_up(context_, cma);
    small_ = std::make_unique<Asker>(context_.connect(url));
    bulk_ = std::make_unique<Asker>(context_.connect(url));
  }
  ~BareContestant() override {
    small_.reset();
    bulk_.reset();
    context_.join();
  }

  Turn run(int64_t bytes, int depth, int count) override {
    const at::Tensor tensor = bytes > kSmallBytes ? source_.first(bytes) : at::Tensor();
    return keep_on_their_way(
        depth, count, [&] { small_->begin(bytes, tensor); }, [&] { small_->wait(); });
  }

  // Beside a stream on a pipe of its own, as the agent has one.
  std::optional<LoadedTurn> run_loaded(double seconds) override {
    std::atomic<bool> over{false};
    int64_t messages = 0;
    const auto start = Clock::now();
    std::thread stream([&] {
      const at::Tensor tensor = source_.first(kStreamBytes);
      int on_their_way = 0;
      for (; !over; ++messages) {
        if (on_their_way == kStreamDepth) bulk_->wait(), --on_their_way;
        bulk_->begin(kStreamBytes, tensor);
        ++on_their_way;
      }
      for (; on_their_way > 0; --on_their_way)
        bulk_->wait();
    });

    LoadedTurn turn;
    while (microseconds_since(start) < seconds * 1e6) {
      const auto begun = Clock::now();
      small_->begin(kSmallBytes, {});
      small_->wait();
      turn.call_us.push_back(microseconds_since(begun));
    }
    over = true;
    stream.join();
    turn.stream_bytes_per_second = static_cast<double>(messages) *
                                   static_cast<double>(kStreamBytes) /
                                   (microseconds_since(start) * 1e-6);
    return turn;
  }

 private:
  const Source source_;
  tensorpipe::Context context_;
  std::unique_ptr<Asker> small_, bulk_;
};

}  // namespace

struct BareServer::Impl {
  explicit Impl(bool cma) : buffer(at::ones({kLargestBytes}, at::kByte)) {
    set_up(context, cma);
    listener = context.listen({"uv://127.0.0.1:0"});
    accept();
  }
  void accept() {
    listener->accept(
        [this](const tensorpipe::Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) noexcept {
          if (error) return;
          std::make_shared<Echo>(std::move(pipe), buffer.mutable_data_ptr())->receive();
          accept();
        });
  }

  at::Tensor buffer;
  tensorpipe::Context context;
  std::shared_ptr<tensorpipe::Listener> listener;
};

BareServer::BareServer(bool cma) : impl_(std::make_unique<Impl>(cma)) {}
BareServer::~BareServer() { impl_->context.join(); }
std::string BareServer::url() const { return impl_->listener->url("uv"); }

std::unique_ptr<Contestant> make_bare_contestant(bool cma, const std::string& url, Source source) {
  return std::make_unique<BareContestant>(cma, url, std::move(source));
}

}  // namespace retort::bench
