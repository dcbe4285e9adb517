// What is behind a connection that TensorPipe holds: a proven stream, a reader, a writer, and one
// way to end, fail().
//
// Callbacks: each fires exactly once, reads in order and writes in order, on the loop thread, and
//   never while the socket still uses the caller's memory. The one exception is the first read of
//   an accepted connection (FrameReader::protect_first_object). Once the connection has finished,
//   what is submitted fails inside the call.
// Threads: submit() and close() from any; everything else on the loop thread. Operations are
//   carried out in the order in which they were submitted.
// Silence: with ContextOptions::probe_interval each side sends a probe when it has nothing else to
//   send, and a connection on which nothing comes for silence_timeout has failed. While a frame is
//   here that nobody reads, its silence is ours.
// Ending: the context keeps a connection from its creation until it has finished.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/transport/detail/frame_reader.h"
#include "rpc/transport/detail/frame_writer.h"
#include "rpc/transport/detail/operations.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class Context;

class ConnectionCore : public std::enable_shared_from_this<ConnectionCore> {
 public:
  ConnectionCore(std::shared_ptr<Context> context, std::string session);

  // Any thread.
  void submit(ReadOperation read) { submit_to(submitted_reads_, std::move(read)); }
  void submit(WriteOperation write) { submit_to(submitted_writes_, std::move(write)); }
  void close();
  const std::string& session() const { return session_; }
  // TensorPipe's name of the connection, which says what it is for.
  void set_id(const std::string& id);

  // The loop thread.
  // Begins with a stream whose other end is proven.
  void attach(std::shared_ptr<Stream> stream);
  // The same for a connection that a listener is to hand over: `ready` runs when its first frame is
  // here, or never.
  void attach_accepted(std::shared_ptr<Stream> stream, std::function<void()> ready);
  void fail(tensorpipe::Error error);
  bool failed() const { return error_; }
  // A connection that was never used and never will be.
  void finish_unused(tensorpipe::Error error);

 private:
  template <class Operation>
  void submit_to(std::vector<Operation>& queue, Operation operation);
  bool take_submitted();
  void advance();
  void greet();
  void pump_reads();
  void read_more(bool served_all);
  void on_read(const boost::system::error_code& code, size_t bytes);
  void begin_probes();
  void tick();
  void pump_writes();
  void on_written(const boost::system::error_code& code, size_t bytes);
  void finish();

  const std::shared_ptr<Context> context_;
  const std::string session_;

  std::mutex mutex_;  // guards what follows; nothing is called with it held
  bool scheduled_ = false;
  bool finished_ = false;
  std::vector<ReadOperation> submitted_reads_;
  std::vector<WriteOperation> submitted_writes_;

  // The loop thread.
  std::shared_ptr<Stream> stream_;
  FrameReader reader_;
  FrameWriter writer_;
  tensorpipe::Error error_;  // constant once finished_
  boost::system::error_code end_of_stream_;
  bool reading_ = false, writing_ = false;
  bool greeted_ = false;         // the first frame of whoever dialed is under way
  std::function<void()> ready_;  // not null while the first frame is awaited
  boost::asio::steady_timer greeting_timer_, probe_timer_;
  std::chrono::steady_clock::time_point last_heard_{}, last_tick_{};
};

}  // namespace retort::rpc::transport
