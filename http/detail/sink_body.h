// A body for Beast's parser that hands its bytes on as they come.
#pragma once

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace retort::http::detail {

struct SinkBody {
  // What it throws passes through the parser.
  using value_type = std::function<void(std::string_view)>;

  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(boost::beast::http::header<kIsRequest, Fields>&, value_type& sink) : sink_(sink) {}

    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      size_t total = 0;
      for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
        sink_({static_cast<const char*>(buffer.data()), buffer.size()});
        total += buffer.size();
      }
      return total;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& sink_;
  };
};

}  // namespace retort::http::detail
