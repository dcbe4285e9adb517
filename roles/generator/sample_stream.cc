#include "roles/generator/sample_stream.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"

namespace retort::roles {
namespace {

// Makes one call after the other, on the loop thread of the agent.
class Collecting : public std::enable_shared_from_this<Collecting> {
 public:
  Collecting(rpc::Agent& agent, std::string generator, std::shared_ptr<SampleStream> stream,
             std::chrono::milliseconds timeout)
      : agent_(agent),
        generator_(std::move(generator)),
        stream_(std::move(stream)),
        timeout_(timeout) {}

  Future<Empty> start() {
    Future<Empty> done = done_.future();
    ask(timeout_);
    return done;
  }

 private:
  Future<Samples> call(std::chrono::milliseconds timeout) {
    const CollectRequest collect{.request_id = stream_->expected().request_id, .have = have_};
    return agent_.call(generator_, kGenerateCollect, collect, {.timeout = timeout});
  }

  void ask(std::chrono::milliseconds timeout) {
    Future<Samples> reply = call(timeout);
    done_.on_cancel(reply.canceller());
    reply.on_outcome(
        [self = shared_from_this()](Outcome<Samples> part) { self->take(std::move(part)); });
  }

  void take(Outcome<Samples> part) {
    try {
      if (part.error) std::rethrow_exception(part.error);
      stream_->take(*part.value, generator_);
    } catch (...) {
      return end(part.error);
    }

    have_ += part.value->indices.numel();
    // One more call says that all has arrived, so that the generator may forget the request. Its
    // answer is of no interest.
    if (part.value->last) {
      call(timeout_).on_outcome([](const Outcome<Samples>&) {});
      return end(nullptr);
    }
    // The bound is for the drawing of the whole request, so the time it has taken is taken off.
    const auto drawn_for = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::duration<double>(std::clamp(part.value->seconds, 0.0, 1e9)));
    ask(std::max(timeout_ - drawn_for, std::chrono::milliseconds(1)));
  }

  void end(std::exception_ptr error) {
    if (error)
      done_.set_error(std::move(error));
    else
      done_.set_value({});
  }

  rpc::Agent& agent_;
  const std::string generator_;
  const std::shared_ptr<SampleStream> stream_;
  const std::chrono::milliseconds timeout_;
  Promise<Empty> done_;
  int64_t have_ = 0;
};

}  // namespace

void SampleStream::take(const Samples& part, const std::string& generator) {
  std::lock_guard lock(mutex_);
  try {
    check_samples(part, expected_, generator);
    if (part.indices.numel() == 0)
      throw Error(ErrorCode::kCorrupt, "samples: an answer to who has not all holds none");
  } catch (...) {
    refused_ = std::current_exception();
    throw;
  }

  generator_ = generator;
  seconds_ = part.seconds;
  for (IndexedCompletion& one : unpack_completions(part)) {
    std::optional<IndexedCompletion>& place = completions_[static_cast<size_t>(one.index)];
    // A request that was sent again draws the same tokens from the beginning, so one may come
    // twice.
    if (place) continue;
    place = std::move(one);
    if (listener_) listener_(*place);
  }
}

Samples SampleStream::whole() {
  std::lock_guard lock(mutex_);
  if (refused_) std::rethrow_exception(refused_);

  std::vector<IndexedCompletion> all;
  for (std::optional<IndexedCompletion>& one : completions_) {
    if (!one)
      throw Error(ErrorCode::kCorrupt, "samples: the last came, but not all of the request")
          .with("request", expected_.request_id)
          .with("missing", all.size());
    all.push_back(std::move(*one));
  }

  // Every part was checked against this label when it came.
  Samples samples = pack_completions(all);
  samples.request_id = expected_.request_id;
  samples.generator = generator_;
  samples.weight_version = expected_.weight_version;
  samples.sequence_hash = expected_.sequence_hash;
  samples.seconds = seconds_;
  samples.last = true;
  return samples;
}

Future<Empty> collect_samples(rpc::Agent& agent, const std::string& generator,
                              std::shared_ptr<SampleStream> stream,
                              std::chrono::milliseconds timeout) {
  return std::make_shared<Collecting>(agent, generator, std::move(stream), timeout)->start();
}

}  // namespace retort::roles
