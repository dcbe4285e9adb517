#include "rpc/transport/detail/connection_core.h"

#include <utility>

#include "base/error.h"
#include "rpc/transport/detail/context.h"

namespace retort::rpc::transport {

using boost::system::error_code;

ConnectionCore::ConnectionCore(std::shared_ptr<Context> context, std::string session)
    : context_(std::move(context)),
      session_(std::move(session)),
      reader_(context_->options().limits),
      greeting_timer_(context_->loop().io()),
      probe_timer_(context_->loop().io()) {}

void ConnectionCore::set_id(const std::string& id) {
  const std::string channel = channel_of(id);
  const auto& on_channel = context_->options().on_channel;
  if (!channel.empty() && on_channel) on_channel(session_, channel);
}

template <class Operation>
void ConnectionCore::submit_to(std::vector<Operation>& queue, Operation operation) {
  // Any thread may submit; one task on the loop takes all that has been gathered until it runs.
  bool late = false;
  {
    std::lock_guard lock(mutex_);
    late = finished_;
    if (!late) {
      queue.push_back(std::move(operation));
      if (std::exchange(scheduled_, true)) return;
    }
  }
  // Once the connection has finished, its error does not change any more, so it needs no lock.
  if (late) return operation.fail(error_);
  context_->run_on_loop([self = shared_from_this()] { self->advance(); });
}

template void ConnectionCore::submit_to(std::vector<ReadOperation>&, ReadOperation);
template void ConnectionCore::submit_to(std::vector<WriteOperation>&, WriteOperation);

void ConnectionCore::close() {
  {
    std::lock_guard lock(mutex_);
    if (finished_) return;
  }
  context_->run_on_loop(
      [self = shared_from_this()] { self->fail(connection_error("the connection was closed")); });
}

bool ConnectionCore::take_submitted() {
  std::lock_guard lock(mutex_);
  scheduled_ = false;
  const bool any = !submitted_reads_.empty() || !submitted_writes_.empty();
  for (auto& read : submitted_reads_)
    reader_.push(std::move(read));
  for (auto& write : submitted_writes_)
    writer_.push(std::move(write));
  submitted_reads_.clear();
  submitted_writes_.clear();
  return any;
}

void ConnectionCore::attach(std::shared_ptr<Stream> stream) {
  if (error_) return stream->close();
  stream_ = std::move(stream);
  begin_probes();
  advance();
}

void ConnectionCore::attach_accepted(std::shared_ptr<Stream> stream, std::function<void()> ready) {
  if (error_) return stream->close();
  stream_ = std::move(stream);
  ready_ = std::move(ready);
  // TensorPipe's listener would end for good if the first object of one connection failed.
  reader_.protect_first_object();

  // The peer has proved who it is, but it may be stuck; its descriptor is not kept for ever.
  greeting_timer_.expires_after(context_->options().greeting_timeout);
  greeting_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code && self->ready_) self->fail(connection_error("the first frame did not come in time"));
  });
  advance();
}

void ConnectionCore::advance() {
  take_submitted();
  if (error_) return finish();
  if (!stream_) return;
  if (ready_) return greet();
  pump_reads();
  pump_writes();
}

void ConnectionCore::greet() {
  switch (reader_.first_frame()) {
    case FrameReader::FirstFrame::kCorrupt:
      return fail(connection_error("the first frame has an impossible length"));
    case FrameReader::FirstFrame::kIncomplete: return read_more(false);
    case FrameReader::FirstFrame::kComplete: break;
  }
  greeting_timer_.cancel();
  std::exchange(ready_, nullptr)();
  greeted_ = true;
  begin_probes();
  advance();
}

void ConnectionCore::pump_reads() {
  using Progress = FrameReader::Progress;
  Progress progress = Progress::kServed;
  while (!error_) {
    progress = reader_.serve();
    if (progress == Progress::kServed) continue;
    // What a callback has just asked for may be here already.
    if (progress != Progress::kNeedsReads || !take_submitted()) break;
  }
  if (error_) return;
  if (progress == Progress::kCorrupt) return fail(connection_error(reader_.problem()));
  read_more(progress == Progress::kNeedsReads);
}

// Reads ahead even when no read waits, because that is how the end of the other side is noticed.
void ConnectionCore::read_more(bool served_all) {
  if (reading_ || error_) return;
  // What is buffered may still serve a read that comes later.
  if (end_of_stream_) {
    if (!served_all || reader_.buffered() == 0)
      fail(connection_error("the other side closed the connection: " + end_of_stream_.message()));
    return;
  }

  const MutableBuffers room = reader_.room();
  if (room.empty()) return;
  reading_ = true;
  stream_->read_some(room, [self = shared_from_this()](const error_code& code, size_t bytes) {
    self->on_read(code, bytes);
  });
}

void ConnectionCore::on_read(const error_code& code, size_t bytes) {
  reading_ = false;
  if (error_) return finish();
  if (code) end_of_stream_ = code;
  reader_.arrived(bytes);
  last_heard_ = std::chrono::steady_clock::now();
  advance();
}

void ConnectionCore::begin_probes() {
  if (context_->options().probe_interval.count() == 0) return;
  last_heard_ = last_tick_ = std::chrono::steady_clock::now();
  probe_timer_.expires_after(context_->options().probe_interval);
  probe_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code) self->tick();
  });
}

void ConnectionCore::tick() {
  if (error_) return;
  const ContextOptions& options = context_->options();
  const auto now = std::chrono::steady_clock::now();
  // A tick that is very late means that this process was stopped; then the silence is ours.
  if (reader_.stalled() || now - last_tick_ > options.silence_timeout) last_heard_ = now;
  last_tick_ = now;
  if (now - last_heard_ > options.silence_timeout)
    return fail(connection_error("nothing came over a data connection for too long"));

  // The first frame of the side that dialed must be TensorPipe's, so no probe goes before it.
  if (greeted_ && !writing_ && writer_.idle()) {
    writer_.push_probe();
    pump_writes();
  }
  probe_timer_.expires_after(options.probe_interval);
  probe_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code) self->tick();
  });
}

void ConnectionCore::pump_writes() {
  if (writing_ || error_ || writer_.idle()) return;
  writing_ = true;
  stream_->write_some(writer_.pieces(),
                      [self = shared_from_this()](const error_code& code, size_t bytes) {
                        self->on_written(code, bytes);
                      });
}

void ConnectionCore::on_written(const error_code& code, size_t bytes) {
  writing_ = false;
  if (error_) return finish();
  if (code) return fail(connection_error("the connection broke: " + code.message()));
  writer_.written(bytes);
  greeted_ = true;
  advance();
}

void ConnectionCore::fail(tensorpipe::Error error) {
  if (error_) return;
  error_ = std::move(error);
  ready_ = nullptr;
  greeting_timer_.cancel();
  probe_timer_.cancel();
  if (stream_) stream_->close();
  // finish() runs from the queue, because whoever failed us may be one of our own callbacks.
  context_->run_on_loop([self = shared_from_this()] { self->finish(); });
}

// Ends the connection once the socket uses no memory of a caller any more: every callback fires.
// What callbacks submit is taken too, until nothing comes.
void ConnectionCore::finish() {
  if (reading_ || writing_) return;
  while (true) {
    take_submitted();
    reader_.fail(error_);
    writer_.fail(error_);
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!submitted_reads_.empty() || !submitted_writes_.empty()) continue;
    finished_ = true;
    break;
  }
  stream_.reset();
  context_->forget(shared_from_this());
}

void ConnectionCore::finish_unused(tensorpipe::Error error) {
  error_ = std::move(error);
  std::lock_guard lock(mutex_);
  finished_ = true;
}

}  // namespace retort::rpc::transport
