#include "roles/generator/client.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "models/decoder/merged_weights.h"
#include "models/generation/request.h"
#include "roles/generator/methods.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "rpc/archive.h"

namespace retort::roles {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Where no copy is kept, so many buckets of a rank may be sealed before they are everywhere: it
// bounds what is held at once.
constexpr size_t kSealedAhead = 4 * WeightBroadcast::kOnTheirWay;

// Returns the bucket of the same place in an earlier push, whose memory may serve again; null if
// there is none.
const WeightBucket* bucket_at(const std::vector<std::vector<WeightBucket>>& buckets, size_t rank,
                              size_t index) {
  const bool there = rank < buckets.size() && index < buckets[rank].size();
  return there ? &buckets[rank][index] : nullptr;
}

// These are the student's own values, which GeneratorInfo must repeat.
struct ExpectedGenerator {
  std::string vocabulary_fingerprint, parameters, base_weights;
  bool adapter_alone = false;  // is pushed
};

// Refuses a generator to which the student's weights cannot be sent, or with which token ids cannot
// be exchanged: kMismatch says what differs and what to do.
void check_matches(const GeneratorInfo& info, const ExpectedGenerator& student) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::kMismatch, what); };
  if (info.vocabulary_fingerprint != student.vocabulary_fingerprint)
    refuse("student and generator tokenizers differ; the generator must have the student's");
  if (info.parameters != student.parameters)
    refuse(
        "student and generator differ in the names, shapes or dtypes of their parameters, or in "
        "config values that change the function (rope_theta, rms_norm_eps, sliding_window, ...); " +
        std::string(student.adapter_alone
                        ? "the generator adds the student's adapter to its own model, so give both "
                          "the same model, dtype and roles.student.lora"
                        : "the generator takes over the student's weights, so give both the same "
                          "model and dtype"));
  if (info.base_weights != student.base_weights)
    refuse(
        "the generator's model has other weights than the student's, beside which the adapter that "
        "it is sent means nothing; give both the same files");
}

}  // namespace

GeneratorClient::GeneratorClient(rpc::Agent& agent, Options options,
                                 const models::Tokenizer& tokenizer, const models::Decoder& student)
    : agent_(agent),
      options_(std::move(options)),
      vocab_rows_(student.config().vocab_size),
      positions_(student.config().max_position_embeddings) {
  // A model that does not say is bounded by what an offset of a token can be.
  if (positions_ <= 0) positions_ = std::numeric_limits<int32_t>::max();
  RETORT_CHECK(!options_.adapter_alone || student.lora()) << "a student without an adapter";
  RETORT_CHECK(options_.tp > 0 && options_.peers.size() % static_cast<size_t>(options_.tp) == 0)
      << "peers that make no replica";

  if (options_.links)
    pushed_ = std::make_unique<PushedWeights>(
        agent_, *options_.links,
        PushedWeights::Options{.peers = options_.peers,
                               .tp = options_.tp,
                               .base_weights = options_.base_weights,
                               .timeout = options_.timeout,
                               .generation_timeout = options_.generation_timeout});

  // A generator is sent weights and exchanges token ids, so both must mean the same there.
  const ExpectedGenerator expected{
      .vocabulary_fingerprint = tokenizer.vocabulary_fingerprint(),
      .parameters = parameters_hash(student, options_.adapter_alone ? student.lora() : nullptr),
      .base_weights = options_.base_weights,
      .adapter_alone = options_.adapter_alone};
  for (size_t i = 0; i < options_.peers.size(); ++i) {
    const std::string& peer = options_.peers[i];
    GeneratorInfo info = rpc::ask_until_up(
        options_.links, {peer}, Deadline::after(options_.patience),
        [&] { return agent_.call(peer, kGeneratorInfo, {}, {.timeout = options_.timeout}).get(); });
    try {
      check_matches(info, expected);
    } catch (const Error& error) {
      throw error.with("generator", peer);
    }

    // Every replica must be cut into ranks as the first one is, because a bucket is cut once for
    // all of them.
    const size_t rank = i % static_cast<size_t>(options_.tp);
    if (rank == held_.size()) held_.push_back(info.slices);
    if (info.tp != options_.tp || info.tp_rank != static_cast<int64_t>(rank) ||
        info.slices != held_[rank])
      throw Error(ErrorCode::kMismatch,
                  "the generator's rank is not the part of a replica that was expected")
          .with("generator", peer)
          .with("tp", info.tp)
          .with("tp_rank", info.tp_rank);
  }
}

PendingSamples GeneratorClient::send(GenerateRequest request, SampleListener listener) {
  PendingSamples pending{.request = std::move(request)};
  pending.stream = std::make_shared<SampleStream>(
      expected_samples(pending.request, vocab_rows_, positions_), std::move(listener));
  pending.generator = leader(
      static_cast<int64_t>(pending.request.request_id % static_cast<uint64_t>(num_replicas())));
  dispatch(pending);
  return pending;
}

void GeneratorClient::dispatch(PendingSamples& pending) {
  pending.lost = false;
  // Acceptance has a future of its own, so that a caller can wait for it without waiting for the
  // samples.
  Promise<Empty> accepted;
  pending.accepted = accepted.future();
  pending.reply =
      agent_
          .call(pending.generator, kGenerateSubmit, pending.request, {.timeout = options_.timeout})
          .then([&agent = agent_, accepted, peer = pending.generator, stream = pending.stream,
                 timeout = options_.generation_timeout](Empty) mutable {
            accepted.set_value({});
            return collect_samples(agent, peer, stream, timeout);
          });
}

// Sends a lost request to the generator that had it if that one is back, else to the next one that
// is there, which draws the same tokens. Waits while all are away.
void GeneratorClient::send_again(PendingSamples& pending) {
  const Deadline deadline = Deadline::after(options_.patience);
  // A generator that says goodbye counts as up until it is gone, so a request that was lost again
  // waits a moment.
  if (pending.resent) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto own =
      static_cast<int64_t>(pending.request.request_id % static_cast<uint64_t>(num_replicas()));
  for (;;) {
    const uint64_t seen = options_.links->changes();
    for (int64_t i = 0; i < num_replicas(); ++i) {
      const std::string& peer = leader((own + i) % num_replicas());
      if (!options_.links->up(peer)) continue;
      RETORT_LOG(kWarning) << "request " << pending.request.request_id << " was lost with "
                           << pending.generator << " and is sent again to " << peer;
      pending.generator = peer;
      pending.resent = true;
      return dispatch(pending);
    }
    if (deadline.expired())
      throw Error(ErrorCode::kPeerLost, "every replica of role '" + options_.role + "' is lost");
    pushed_->check();
    options_.links->wait_change(
        seen, Deadline(std::min(deadline.time(), Deadline::after(std::chrono::seconds(1)).time())));
  }
}

void GeneratorClient::wait_accepted(PendingSamples& pending) {
  if (!pending.accepted.valid()) return;
  try {
    pending.accepted.get();
  } catch (const Error&) {
    pending.lost = !take(pending);  // receive() sends it again
    if (!pending.lost) throw;
  }
}

// Looks for other errors while it waits for an answer, because a generator that waits for weights
// which cannot be restored never gives one.
void GeneratorClient::watch(Future<Empty>& reply, const std::function<void()>& meanwhile) const {
  const std::chrono::milliseconds slice(meanwhile ? 20 : 1000);
  while ((pushed_ || meanwhile) && !reply.ready()) {
    if (pushed_) pushed_->check();
    if (meanwhile) meanwhile();
    reply.wait(Deadline::after(slice));
  }
}

// False when the request was lost with its generator.
bool GeneratorClient::take(PendingSamples& pending, const std::function<void()>& meanwhile) const {
  if (pending.lost) return false;
  // What watch() throws is about something else than this request, so it is not caught below.
  watch(pending.reply, meanwhile);
  try {
    pending.reply.get();
    return true;
  } catch (const Error& error) {
    if (options_.links && error.code() == ErrorCode::kPeerLost) return false;
    // The request may also have come to a generator that had lost its weights and got newer ones.
    // Nobody can draw it any more.
    if (options_.links && error.code() == ErrorCode::kMismatch)
      throw Error(ErrorCode::kCancelled,
                  "the request was lost with its generator, and the weights "
                  "that it names are replaced: " +
                      error.message());
    throw;
  }
}

Samples GeneratorClient::receive(PendingSamples pending, double* waited,
                                 const std::function<void()>& meanwhile) {
  const auto start = std::chrono::steady_clock::now();
  try {
    while (!take(pending, meanwhile))
      send_again(pending);
    if (waited) *waited += seconds_since(start);
    return pending.stream->whole();
  } catch (const Error& error) {
    throw error.with("generator", pending.generator).with("step", pending.request.step);
  }
}

SentWeights GeneratorClient::send_weights(const models::Decoder& decoder, uint64_t version,
                                          int64_t bucket_bytes, int64_t sender) {
  const auto start = std::chrono::steady_clock::now();

  // All replicas get the same, so a bucket is cut and sealed once for each rank of a replica.
  if (pushed_) pushed_->check();
  SentWeights sent;
  WeightBroadcast::Buckets buckets;
  const auto parameters =
      options_.adapter_alone ? decoder.trained_parameters() : models::merged_parameters(decoder);
  for (const std::vector<WeightSlice>& held : held_) {
    buckets.push_back(make_weight_buckets(parameters, held, version, bucket_bytes, sender));
    sent.receipts.push_back({.receiver = static_cast<int64_t>(sent.receipts.size()),
                             .sender = sender,
                             .buckets = static_cast<int64_t>(buckets.back().size())});
  }

  // PushedWeights sends nothing while this push does, and the memory of the earlier push serves
  // again. Who is away now gets all of this one when it is back.
  std::unique_lock<std::mutex> pause;
  WeightBroadcast::Buckets earlier;
  if (pushed_) {
    pause = pushed_->pause();
    earlier = pushed_->take();
  }
  WeightBroadcast spread(agent_,
                         {.version = version,
                          .sender = sender,
                          .peers = peers_in_order(),
                          .pass_on = !options_.weights_on_device,
                          .leave_behind = pushed_ != nullptr,
                          .timeout = options_.timeout,
                          .patience = options_.push_patience,
                          .passes = [this](const Error& error) { return passes(error); }},
                         buckets);

  seal_and_send(spread, buckets, earlier, sent);
  spread.wait_all();
  // PushedWeights brings the rest to those that were lost or left behind.
  missed_ = spread.missed();
  for (const std::string& peer : missed_)
    pushed_->restore(peer);

  // When most peers are slow, the cause is not in them, and none is put last.
  slow_.insert(spread.slow().begin(), spread.slow().end());
  if (2 * slow_.size() > options_.peers.size()) slow_.clear();

  if (pushed_) pushed_->keep(version, std::move(buckets));
  sent.seconds = seconds_since(start);
  return sent;
}

// Seals the next bucket while the ones before it travel.
void GeneratorClient::seal_and_send(WeightBroadcast& spread, WeightBroadcast::Buckets& buckets,
                                    const WeightBroadcast::Buckets& earlier, SentWeights& sent) {
  size_t most = 0;
  for (const std::vector<WeightBucket>& of_rank : buckets)
    most = std::max(most, of_rank.size());

  for (size_t i = 0; i < most; ++i)
    for (size_t rank = 0; rank < buckets.size(); ++rank) {
      if (i >= buckets[rank].size()) continue;
      WeightBucket& bucket = buckets[rank][i];
      // The trainer's memory changes with its next step, so what is kept is a copy.
      uint64_t& checksum = sent.receipts[rank].checksum;
      checksum = pushed_ ? seal_copy(bucket, checksum, options_.weights_on_device,
                                     bucket_at(earlier, rank, i))
                         : seal(bucket, checksum, options_.weights_on_device);
      for (const WeightPart& part : bucket.parts)
        sent.bytes += part.values.nbytes();
      spread.sealed(rank);
      spread.advance();
      if (pushed_ || i < kSealedAhead) continue;

      // A bucket that is everywhere is not needed any more.
      spread.wait_for(rank, i + 1 - kSealedAhead);
      buckets[rank][i - kSealedAhead].parts.clear();
    }
}

// Returns the peers that are there. Those that kept others waiting come last, where nobody waits
// for them.
std::vector<WeightBroadcast::Peer> GeneratorClient::peers_in_order() const {
  std::vector<WeightBroadcast::Peer> peers;
  for (size_t i = 0; i < options_.peers.size(); ++i)
    if (!options_.links || options_.links->up(options_.peers[i]))
      peers.push_back({options_.peers[i], i % held_.size()});
  std::stable_partition(peers.begin(), peers.end(),
                        [&](const auto& peer) { return !slow_.contains(peer.name); });
  return peers;
}

// Tells whether an error passes by itself. With links it is then left to PushedWeights.
bool GeneratorClient::passes(const Error& error) const {
  const ErrorCode code = error.code();
  return pushed_ && (code == ErrorCode::kPeerLost || code == ErrorCode::kUnavailable ||
                     code == ErrorCode::kCancelled);
}

PendingPush GeneratorClient::commit(uint64_t version, const std::vector<SentWeights>& sent,
                                    bool abort) {
  PendingPush pending{.version = version};
  CommitWeights commit{.version = version, .receipts = {}, .abort = abort};
  for (const SentWeights& one : sent) {
    commit.receipts.insert(commit.receipts.end(), one.receipts.begin(), one.receipts.end());
    pending.seconds = std::max(pending.seconds, one.seconds);
    pending.bytes += one.bytes;
  }
  pending.checksum = weights_checksum(commit.receipts);
  if (pushed_) pushed_->keep(commit);
  for (int64_t replica = 0; replica < num_replicas(); ++replica) {
    // Nobody waits for a replica that was left behind: it gets the commit after what it lacks.
    Future<CommitReply> reply;
    if (missed(replica))
      pushed_->commit_again(replica);
    else
      reply = watched(replica, agent_.call(leader(replica), kWeightsCommit, commit,
                                           {.timeout = options_.generation_timeout}));
    pending.replies.push_back(std::move(reply));
  }
  return pending;
}

// Tells whether some rank of the replica did not get all of the last push.
bool GeneratorClient::missed(int64_t replica) const {
  const auto first = options_.peers.begin() + replica * options_.tp;
  return std::any_of(first, first + options_.tp, [&](const std::string& peer) {
    return std::find(missed_.begin(), missed_.end(), peer) != missed_.end();
  });
}

// A commit that fails is sent again at once. Samples of these weights may be waited for before
// wait_pushed() is called, and without the commit they would never come.
Future<CommitReply> GeneratorClient::watched(int64_t replica, Future<CommitReply> reply) const {
  if (!pushed_) return reply;
  Promise<CommitReply> promise;
  auto future = promise.future();
  reply.on_outcome([promise, replica, again = pushed_->committer()](auto outcome) mutable {
    if (outcome.error) again(replica);
    promise.complete(std::move(outcome));
  });
  return future;
}

PendingPush GeneratorClient::push(const models::Decoder& decoder, uint64_t version,
                                  int64_t bucket_bytes, bool abort) {
  return commit(version, {send_weights(decoder, version, bucket_bytes)}, abort);
}

void GeneratorClient::wait_pushed(PendingPush pending) {
  for (size_t i = 0; i < pending.replies.size(); ++i) {
    const std::string& peer = leader(static_cast<int64_t>(i));
    if (!pending.replies[i].valid()) continue;
    try {
      const CommitReply reply = pending.replies[i].get();
      if (reply.version != pending.version || reply.checksum != pending.checksum)
        throw Error(ErrorCode::kMismatch, "the generator took over other weights than were sent")
            .with("version", reply.version)
            .with("sent_version", pending.version);
    } catch (const Error& error) {
      // watched() has already committed again what passes by itself.
      if (!passes(error))
        throw error.with("generator", peer).with("weight_version", pending.version);
    }
  }
  if (pushed_) pushed_->check();
}

std::vector<SentWeights> gather_sent(parallel::Group& group, const SentWeights& mine) {
  if (group.size() == 1) return {mine};
  const auto receivers = static_cast<int64_t>(mine.receipts.size());

  // One all-gather carries a row for each receiver, in order, of buckets and checksum. The last row
  // has bytes and nanoseconds.
  at::Tensor numbers = at::empty({receivers + 1, 2}, at::kLong);
  auto* number = numbers.mutable_data_ptr<int64_t>();
  for (const WeightReceipt& receipt : mine.receipts) {
    *number++ = receipt.buckets;
    *number++ = static_cast<int64_t>(receipt.checksum);
  }
  *number++ = static_cast<int64_t>(mine.bytes);
  *number++ = static_cast<int64_t>(mine.seconds * 1e9);
  const at::Tensor all = group.all_gather(numbers).contiguous();
  const auto* next = all.const_data_ptr<int64_t>();
  std::vector<SentWeights> sent(static_cast<size_t>(group.size()));
  for (size_t sender = 0; sender < sent.size(); ++sender) {
    for (int64_t receiver = 0; receiver < receivers; ++receiver, next += 2)
      sent[sender].receipts.push_back({.receiver = receiver,
                                       .sender = static_cast<int64_t>(sender),
                                       .buckets = next[0],
                                       .checksum = static_cast<uint64_t>(next[1])});
    sent[sender].bytes = static_cast<uint64_t>(*next++);
    sent[sender].seconds = static_cast<double>(*next++) * 1e-9;
  }
  return sent;
}

std::vector<Samples> share_samples(parallel::Group& group, std::vector<Samples> received) {
  if (group.size() == 1) return received;
  const std::string bytes =
      group.broadcast(group.rank() == 0 ? rpc::to_bytes(received) : std::string(), 0);
  return group.rank() == 0 ? std::move(received) : rpc::from_bytes<std::vector<Samples>>(bytes);
}

}  // namespace retort::roles
