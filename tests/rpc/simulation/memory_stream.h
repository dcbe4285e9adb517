// A control connection's end in memory.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "rpc/transport/stream.h"
#include "tests/rpc/simulation/network.h"

namespace retort::rpc::simulation {

class MemoryStream final : public transport::Stream,
                           public End,
                           public std::enable_shared_from_this<MemoryStream> {
 public:
  using End::End;
  static void join(const std::shared_ptr<MemoryStream>& one,
                   const std::shared_ptr<MemoryStream>& other);

  void start(Handler handler) override;
  void read_some(transport::MutableBuffers to, TransferHandler handler) override;
  void write_some(transport::ConstBuffers from, TransferHandler handler) override;
  void close() override;
  std::string channel_binding() const override { return {}; }
  Endpoint local_endpoint() const override { return {}; }
  Endpoint remote_endpoint() const override { return {}; }

  void reset() override;

 private:
  struct Piece {
    std::string bytes;
    bool end = false;
  };
  void send(Piece piece);
  void arrive(Piece piece);
  void answer_reader();
  void end_reader(const boost::system::error_code& code);

  std::weak_ptr<MemoryStream> peer_;
  Clock::time_point last_arrival_{};  // at the peer, of what was sent
  std::deque<Piece> under_way_;
  std::string arrived_;
  bool at_end_ = false;
  boost::asio::mutable_buffer to_;
  TransferHandler reader_;
};

}  // namespace retort::rpc::simulation
