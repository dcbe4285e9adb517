#include "parallel/pipeline_channel.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/sizes.h"
#include "base/thread_checker.h"
#include "parallel/detail/pipeline_header.h"

namespace retort::parallel {
namespace {

// Headers and payloads of the two kinds have a tag each: messages of one tag arrive in the order of
// their sends, and forwards and backwards need not wait for each other.
int header_tag(const PipelineAction& label) {
  return label.kind == PipelineAction::Kind::kForward ? 1 : 3;
}
int payload_tag(const PipelineAction& label) { return header_tag(label) + 1; }

constexpr int64_t kHeaderWords = std::tuple_size_v<detail::PipelineHeaderWords>;

at::Tensor empty_header() { return at::empty({kHeaderWords}, at::kLong); }

// A message that was sent and perhaps not yet taken. The works stand last, so that they are
// destroyed before the memory they use.
struct Sent {
  int64_t to = 0;
  PipelineAction label;
  at::Tensor header, payload;
  Work header_work, payload_work;
};

}  // namespace

struct PipelineChannel::Impl {
  Group& pp;
  int64_t sends_in_flight;
  std::deque<Sent> sent;
  ThreadChecker compute_thread{};

  // Runs `body`; its errors get the names of the message.
  template <class F>
  auto naming(const char* direction, int64_t other, const PipelineAction& label, F&& body) {
    try {
      return body();
    } catch (const Error& e) {
      throw e.with("stage", pp.rank())
          .with(direction, other)
          .with("kind", enum_name(label.kind))
          .with("chunk", label.chunk)
          .with("micro_batch", label.micro_batch);
    }
  }

  void wait_until_at_most(int64_t messages) {
    while (std::ssize(sent) > messages) {
      Sent& oldest = sent.front();
      naming("to_stage", oldest.to, oldest.label, [&] {
        oldest.header_work.wait();
        oldest.payload_work.wait();
      });
      sent.pop_front();
    }
  }

  detail::PipelineHeader receive_header(int from, const PipelineAction& label) {
    at::Tensor tensor = empty_header();
    pp.recv(tensor, from, header_tag(label));
    detail::PipelineHeaderWords words;
    std::copy_n(tensor.const_data_ptr<int64_t>(), words.size(), words.begin());
    return detail::decode(words);
  }
};

PipelineChannel::PipelineChannel(Group& pp, int64_t sends_in_flight)
    : impl_(new Impl{pp, sends_in_flight, {}}) {
  if (sends_in_flight < kMinimumSendsInFlight)
    throw Error(ErrorCode::kInvalidArgument,
                "a pipeline stage must be able to have " + std::to_string(kMinimumSendsInFlight) +
                    " messages on their way, or stages wait for each other; got " +
                    std::to_string(sends_in_flight));
}
PipelineChannel::~PipelineChannel() = default;

void PipelineChannel::send(const at::Tensor& tensor, int64_t to_stage,
                           const PipelineAction& label) {
  impl_->compute_thread.check("PipelineChannel::send()");
  impl_->naming("to_stage", to_stage, label, [&] {
    if (!tensor.defined())
      throw Error(ErrorCode::kInvalidArgument,
                  "an undefined tensor cannot be sent to another pipeline stage");
    const auto words = detail::encode({label, tensor.scalar_type(), tensor.sizes().vec()});
    Sent sent{to_stage, label, empty_header(), tensor.detach().contiguous(), {}, {}};
    std::copy(words.begin(), words.end(), sent.header.mutable_data_ptr<int64_t>());

    // The header goes ahead: from it the receiver learns how much memory the payload needs.
    const int to = to_int(to_stage);
    sent.header_work = impl_->pp.send_async(sent.header, to, header_tag(label));
    sent.payload_work = impl_->pp.send_async(sent.payload, to, payload_tag(label));
    impl_->sent.push_back(std::move(sent));
  });
  // The bound keeps a fast stage from piling up tensors that a slow one has not taken.
  impl_->wait_until_at_most(impl_->sends_in_flight);
}

at::Tensor PipelineChannel::recv(int64_t from_stage, const PipelineAction& label,
                                 const std::optional<std::vector<int64_t>>& sizes,
                                 std::optional<at::ScalarType> dtype) {
  impl_->compute_thread.check("PipelineChannel::recv()");
  return impl_->naming("from_stage", from_stage, label, [&] {
    // Stages with different schedules or batches would compute on the wrong tensors. So the header
    // is compared with what the caller expects before the payload is received.
    const int from = to_int(from_stage);
    const detail::PipelineHeader header = impl_->receive_header(from, label);
    if (header.label != label)
      throw Error(ErrorCode::kMismatch, "expected the input of " + to_string(label) +
                                            ", but got that of " + to_string(header.label) +
                                            "; do all stages have the same schedule?");
    if ((sizes && *sizes != header.sizes) || (dtype && *dtype != header.dtype))
      throw Error(ErrorCode::kMismatch,
                  "expected " +
                      detail::describe(dtype.value_or(header.dtype), sizes.value_or(header.sizes)) +
                      " from the other stage, but got " +
                      detail::describe(header.dtype, header.sizes) +
                      "; do all stages have the same batch and model?");

    at::Tensor result = at::empty(header.sizes, header.dtype);
    impl_->pp.recv(result, from, payload_tag(label));
    return result;
  });
}

void PipelineChannel::flush() { impl_->wait_until_at_most(0); }

int64_t PipelineChannel::in_flight() const { return std::ssize(impl_->sent); }

}  // namespace retort::parallel
