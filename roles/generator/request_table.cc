#include "roles/generator/request_table.h"

#include <iterator>
#include <limits>

#include "base/error.h"
#include "rpc/archive.h"

namespace retort::roles {

size_t RequestTable::count(const std::string& caller) const {
  const auto first = jobs_.lower_bound({caller, 0});
  const auto end = jobs_.upper_bound({caller, std::numeric_limits<uint64_t>::max()});
  return static_cast<size_t>(std::distance(first, end));
}

void RequestTable::add(const Key& key, GenerateRequest request) {
  if (const auto found = jobs_.find(key); found != jobs_.end()) {
    Job& job = found->second;
    if (rpc::to_bytes(job.request) != rpc::to_bytes(request))
      throw Error(ErrorCode::kInvalidArgument, "generator.submit: the request id is in use")
          .with("request", key.second);
    job.collector.reset();
    job.cancelled.reset();
    job.clock.reset();
    return;
  }
  if (count(key.first) >= kMaxPerCaller)
    throw Error(ErrorCode::kResourceExhausted,
                "too many requests of this caller are neither done nor collected")
        .with("caller", key.first);
  jobs_[key].request = std::move(request);
  unfinished_.push_back(key);
}

Future<Samples> RequestTable::collect(uint64_t request_id, const rpc::CallContext& caller) {
  const auto found = jobs_.find({caller.peer, request_id});
  if (found == jobs_.end())
    throw Error(ErrorCode::kInvalidArgument,
                "generator.collect: no such request, or it was collected")
        .with("request", request_id);

  Promise<Samples> promise;
  auto future = promise.future();
  Job& job = found->second;
  if (job.outcome) {
    promise.complete(std::move(*job.outcome));
    jobs_.erase(found);
    return future;
  }
  job.collector = promise;
  job.cancelled = caller.cancelled;
  job.clock = caller.clock;
  if (!job.engine_id) job.clock->wait();
  return future;
}

void RequestTable::begin_draw(const Key& key, uint64_t engine_id) {
  Job& job = jobs_.at(key);
  job.engine_id = engine_id;
  job.started = std::chrono::steady_clock::now();
  if (job.clock) job.clock->begin();
}

void RequestTable::finish(const Key& key, Outcome<Samples> outcome) {
  std::erase(unfinished_, key);
  Job& job = jobs_.at(key);
  job.engine_id.reset();
  if (!job.collector) {
    job.outcome = std::move(outcome);
    return;
  }
  job.collector->complete(std::move(outcome));
  jobs_.erase(key);
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

std::vector<RequestTable::Key> RequestTable::unwanted(
    const std::set<std::string>& connected) const {
  std::vector<Key> keys;
  for (const auto& [key, job] : jobs_) {
    const bool taken = job.collector ? !job.cancelled->load() : connected.contains(key.first);
    if (!taken) keys.push_back(key);
  }
  return keys;
}

}  // namespace retort::roles
