#include "rpc/transport/tls_threads.h"

#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "rpc/loop/sigpipe_block.h"

namespace retort::rpc::transport {

TlsThreads::TlsThreads(TlsThreadsOptions options)
    : options_(std::move(options)), work_(boost::asio::make_work_guard(tasks_)) {
  RETORT_CHECK(options_.num_threads > 0) << "TLS needs a thread, or no TlsThreads at all";
}

TlsThreads::~TlsThreads() {
  tasks_.stop();
  for (std::thread& thread : threads_)
    thread.join();
}

bool TlsThreads::start() {
  std::call_once(tried_, [this] { start_all(); });
  return !threads_.empty();
}

// The loop thread runs this in the middle of somebody's transfer, so what the system refuses must
// not become an error of that one.
void TlsThreads::start_all() {
  threads_.reserve(options_.num_threads);
  rpc::detail::SigpipeBlock no_sigpipe;  // which the threads inherit
  try {
    while (threads_.size() < options_.num_threads)
      threads_.push_back(options_.start_thread([this] { tasks_.run(); }));
  } catch (const std::system_error& error) {
    RETORT_LOG(kWarning) << "TLS has " << threads_.size() << " of " << options_.num_threads
                         << " threads for large transfers (" << error.code().message()
                         << "); with none the network thread seals and opens them, and all peers "
                            "wait for that; raise the limit of processes (ulimit -u, pids.max)";
  }
}

}  // namespace retort::rpc::transport
