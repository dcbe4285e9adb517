#include "rpc/detail/wire_schema.h"

#include "rpc/detail/envelope.h"
#include "rpc/detail/frames.h"
#include "rpc/schema.h"

namespace retort::rpc::detail {
namespace {

// Raised with every change that the types below do not show: an order, a meaning, an encoding.
constexpr const char* kConventions =
    "frames 4, connections 2, envelope 3, archive 1, tensorpipe of torch 2.11.0";

}  // namespace

std::string wire_format() {
  return std::string(kConventions) + "; frames " + schema_text<FrameType>() + " " +
         schema_text<Ready>() + schema_text<Farewell>() + schema_text<Cancel>() +
         schema_text<Ask>() + schema_text<Standing>() + schema_text<Room>() +
         schema_text<PipeHello>() + "; envelope " + schema_text<Envelope>() + "; error " +
         schema_text<WireError>();
}

std::string wire_schema() { return "retort " RETORT_VERSION ", " + wire_format(); }

}  // namespace retort::rpc::detail
