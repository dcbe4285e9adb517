#include "rpc/future.h"

namespace retort::rpc::detail {
namespace {
thread_local int loop_depth = 0;
}

bool on_loop_thread() { return loop_depth > 0; }
LoopThreadScope::LoopThreadScope() { ++loop_depth; }
LoopThreadScope::~LoopThreadScope() { --loop_depth; }

}  // namespace retort::rpc::detail
