// TensorPipe alone, on its own transport uv: descriptor, allocation, read, an answer of 8 bytes,
// all of it in TensorPipe's own callbacks.
#pragma once

#include <memory>
#include <string>

#include "bench/rpc/contestant.h"

namespace retort::bench {

// The side that receives, on TensorPipe's threads. All messages go into one buffer, as large as the
// largest.
class BareServer {
 public:
  explicit BareServer(bool cma);
  ~BareServer();
  std::string url() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::unique_ptr<Contestant> make_bare_contestant(bool cma, const std::string& url, Source source);

}  // namespace retort::bench
