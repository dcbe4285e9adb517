#include "roles/generator/request_table.h"

#include <iterator>
#include <limits>
#include <ranges>
#include <span>

#include "base/error.h"
#include "rpc/archive.h"

namespace retort::roles {
namespace {

// Packs the completions after the first `have`: as many as one answer may hold, and at least one if
// there is any.
Samples answer_of(const RequestTable::Job& job, int64_t have) {
  const auto first = static_cast<size_t>(have);
  size_t end = first;
  for (int64_t tokens = 0; end < job.ended.size(); ++end) {
    tokens += static_cast<int64_t>(job.ended[end].completion.token_ids.size());
    if (end > first && tokens > RequestTable::kMaxTokensPerAnswer) break;
  }

  Samples samples = pack_completions(std::span(job.ended).subspan(first, end - first));
  samples.request_id = job.request.request_id;
  samples.generator = job.label.generator;
  samples.weight_version = job.label.weight_version;
  samples.sequence_hash = job.label.sequence_hash;
  if (end > 0)
    samples.seconds = std::chrono::duration<double>(job.end_times[end - 1] - job.started).count();
  samples.last = job.complete() && end == job.ended.size();
  return samples;
}

// Returns the jobs of one caller, which lie side by side in the map.
auto of(const std::map<RequestTable::Key, RequestTable::Job>& jobs, const std::string& caller) {
  return std::ranges::subrange(jobs.lower_bound({caller, 0}),
                               jobs.upper_bound({caller, std::numeric_limits<uint64_t>::max()}));
}

}  // namespace

size_t RequestTable::count(const std::string& caller) const {
  return static_cast<size_t>(std::ranges::distance(of(jobs_, caller)));
}

void RequestTable::add(const Key& key, GenerateRequest request, const std::string& process) {
  if (const auto found = jobs_.find(key); found != jobs_.end()) {
    // The same request, sent again, finds its job and what was drawn; the call that collected
    // before is dropped.
    Job& job = found->second;
    if (rpc::to_bytes(job.request) != rpc::to_bytes(request))
      throw Error(ErrorCode::kInvalidArgument, "generator.submit: the request id is in use")
          .with("request", key.second);
    job.collector.reset();
    return;
  }
  if (count(key.first) >= kMaxPerCaller)
    throw Error(ErrorCode::kResourceExhausted,
                "too many requests of this caller are neither done nor collected")
        .with("caller", key.first);
  Job& job = jobs_[key];
  job.request = std::move(request);
  job.process = process;
  unfinished_.push_back(key);
}

Future<Samples> RequestTable::collect(const CollectRequest& collect,
                                      const rpc::CallContext& caller) {
  const auto found = jobs_.find({caller.peer, collect.request_id});
  if (found == jobs_.end())
    throw Error(ErrorCode::kInvalidArgument,
                "generator.collect: no such request, or all of it was collected")
        .with("request", collect.request_id);
  Job& job = found->second;
  const auto ended = static_cast<int64_t>(job.ended.size());
  if (collect.have < 0 || collect.have > ended)
    throw Error(ErrorCode::kInvalidArgument,
                "generator.collect: the caller cannot have more samples than were given to it")
        .with("request", collect.request_id)
        .with("have", collect.have)
        .with("given", ended);

  // Samples that are there are given at once. The job stays until the caller says that it has all
  // of them, so that it can ask again for an answer that was lost.
  Collector collector{.have = collect.have, .cancelled = caller.cancelled, .clock = caller.clock};
  auto future = collector.reply.future();
  if (job.error) {
    collector.reply.set_error(job.error);
    jobs_.erase(found);
  } else if (job.complete() && collect.have == ended) {
    collector.reply.set_value(answer_of(job, collect.have));
    jobs_.erase(found);
  } else if (collect.have < ended) {
    collector.reply.set_value(answer_of(job, collect.have));
    job.collector.reset();
  } else {
    // Until the request is drawn the call waits for others, which is no work of its own.
    if (!job.engine_id) collector.clock->wait();
    if (job.collector)
      job.collector->reply.set_error(std::make_exception_ptr(
          Error(ErrorCode::kCancelled, "generator.collect: the caller asked again")));
    job.collector = std::move(collector);
  }
  return future;
}

void RequestTable::begin_draw(const Key& key, uint64_t engine_id, Samples label) {
  Job& job = jobs_.at(key);
  job.engine_id = engine_id;
  job.label = std::move(label);
  job.started = Clock::now();
  job.has_ended.resize(static_cast<size_t>(job.request.sample_ids.numel()));
  if (job.collector) job.collector->clock->begin();
}

bool RequestTable::add_completion(const Key& key, IndexedCompletion completion) {
  Job& job = jobs_.at(key);
  const auto place = static_cast<size_t>(completion.index);
  RETORT_CHECK(!job.has_ended.at(place)) << "completion " << place << " ended twice";
  job.has_ended[place] = true;
  job.ended.push_back(std::move(completion));
  job.end_times.push_back(Clock::now());

  // The last completion takes the request out of those that are drawn; the samples stay for the
  // caller.
  if (!job.complete()) return false;
  end(key);
  return true;
}

void RequestTable::answer() {
  for (auto& [key, job] : jobs_) {
    if (!job.collector || job.collector->have >= static_cast<int64_t>(job.ended.size())) continue;
    job.collector->reply.set_value(answer_of(job, job.collector->have));
    job.collector.reset();
  }
}

void RequestTable::fail(const Key& key, std::exception_ptr error) {
  end(key);
  Job& job = jobs_.at(key);
  if (!job.collector) {
    job.error = std::move(error);
    return;
  }
  job.collector->reply.set_error(std::move(error));
  jobs_.erase(key);
}

// From now on the job neither waits nor is drawn.
void RequestTable::end(const Key& key) {
  std::erase(unfinished_, key);
  jobs_.at(key).engine_id.reset();
}

void RequestTable::forget(const Key& key) {
  std::erase(unfinished_, key);
  jobs_.erase(key);
}

std::vector<RequestTable::Key> RequestTable::due(uint64_t version) const {
  std::vector<Key> keys;
  for (const Key& key : unfinished_) {
    const Job& job = jobs_.at(key);
    if (!job.engine_id && job.request.weight_version <= version) keys.push_back(key);
  }
  return keys;
}

std::vector<RequestTable::Key> RequestTable::drawn() const {
  std::vector<Key> keys;
  for (const Key& key : unfinished_)
    if (jobs_.at(key).engine_id) keys.push_back(key);
  return keys;
}

std::vector<RequestTable::Key> RequestTable::unfinished_before(uint64_t version) const {
  std::vector<Key> keys;
  for (const Key& key : unfinished_)
    if (jobs_.at(key).request.weight_version < version) keys.push_back(key);
  return keys;
}

std::vector<RequestTable::Key> RequestTable::of_earlier_process(const std::string& caller,
                                                                const std::string& process) const {
  std::vector<Key> keys;
  for (const auto& [key, job] : of(jobs_, caller))
    if (job.process != process) keys.push_back(key);
  return keys;
}

std::vector<RequestTable::Key> RequestTable::unwanted(
    const std::set<std::string>& connected) const {
  std::vector<Key> keys;
  for (const auto& [key, job] : jobs_) {
    // A call that waits knows whether it was cancelled; without one only the connection tells.
    const bool taken =
        job.collector ? !job.collector->cancelled->load() : connected.contains(key.first);
    if (!taken) keys.push_back(key);
  }
  return keys;
}

}  // namespace retort::roles
